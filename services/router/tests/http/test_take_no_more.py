"""A listening socket before it is closed: who has connected is served, who comes now is not."""

from __future__ import annotations

import socket

import pytest

from services.router.http.server import take_no_more


def test_who_waits_to_be_accepted_is_and_nobody_who_comes_later() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()
        with socket.create_connection(address) as waiting:
            waiting.sendall(b"asked")
            take_no_more(listening)
            with pytest.raises(TimeoutError):
                socket.create_connection(address, timeout=0.3)
            accepted, _ = listening.accept()
            with accepted:
                assert accepted.recv(5) == b"asked"
                waiting.sendall(b"more")
                assert accepted.recv(4) == b"more", "what is accepted has no such filter"
                accepted.sendall(b"told")
                assert waiting.recv(4) == b"told"
            listening.settimeout(0.1)
            with pytest.raises(TimeoutError):
                listening.accept()

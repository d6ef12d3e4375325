"""Which ports an instance gets."""

from __future__ import annotations

import random
import socket

import pytest

from services.cli.errors import CliError
from services.cli.net import PortPicker, Wanted, is_free, wanted


def picker() -> PortPicker:
    return PortPicker(random.Random(1))


def test_a_named_port_in_use_is_one_sentence_with_the_flag() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(CliError, match=rf"Port {port} is in use: .* another --etcd-port"):
            picker().pick(wanted("--etcd-port", port, 2379))


def test_a_default_port_in_use_is_replaced_by_a_free_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        port = picker().pick(wanted("--etcd-port", None, taken))
    assert port != taken
    assert is_free(port)


def test_the_default_http_port_is_not_replaced() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        with pytest.raises(CliError, match="--http-port"):
            picker().pick(wanted("--http-port", None, taken, strict=True))


def test_zero_is_any_port_and_none_is_picked_twice() -> None:
    ports = picker()
    picked = [ports.pick(Wanted("--x", 0, strict=False)) for _ in range(20)]
    assert len(set(picked)) == 20
    assert all(is_free(port) for port in picked)


def test_a_port_that_was_picked_is_not_given_to_a_flag_that_names_it() -> None:
    ports = picker()
    port = ports.free()
    with pytest.raises(CliError, match="in use"):
        ports.pick(wanted("--leap-port", port, 7074))

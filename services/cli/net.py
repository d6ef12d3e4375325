"""Ports of a local instance."""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass
from pathlib import Path

from services.cli.errors import CliError

HOST = "127.0.0.1"
HTTP = 8080
ROUTER, SCHEDULER, MODELSERVER, KVSTORE, LEAP, ETCD = 7070, 7071, 7072, 7073, 7074, 2379
LOWEST_PICKED = 20_000
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
TRIES = 200


@dataclass(frozen=True, slots=True)
class Wanted:
    """A port to listen on. number: 0 = any. strict: it or nothing; else another if it is taken."""

    flag: str
    number: int
    strict: bool


def wanted(flag: str, given: int | None, default: int, *, strict: bool = False) -> Wanted:
    """given: what the user said, None = nothing; a number that was said is meant."""
    if given is not None:
        return Wanted(flag, given, strict=given != 0)
    return Wanted(flag, default, strict=strict)


class PortPicker:
    """Picks ports, each once. They are checked, not held: another program may take one before the
    service does, which the service then says."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.SystemRandom()
        self._picked: set[int] = set()

    def pick(self, wish: Wanted) -> int:
        """Raises CliError, naming the flag, for a strict port that is in use."""
        if wish.number and self._usable(wish.number):
            return self._take(wish.number)
        if wish.strict:
            raise CliError(
                f"Port {wish.number} is in use: stop what listens there, or give another "
                f"{wish.flag} (0 picks a free one)."
            )
        return self.free()

    def free(self) -> int:
        """Below the range that outgoing connections take theirs from: between two lives of a
        service nothing else gets its port by chance."""
        highest = _first_ephemeral() - 1
        for _ in range(TRIES):
            port = self._rng.randint(min(LOWEST_PICKED, highest - 1000), highest)
            if self._usable(port):
                return self._take(port)
        raise CliError("No free port was found: too many programs listen on this machine.")

    def _usable(self, port: int) -> bool:
        return port not in self._picked and is_free(port)

    def _take(self, port: int) -> int:
        self._picked.add(port)
        return port


def is_free(port: int) -> bool:
    """Whether a server could listen on the loopback port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen()
        except OSError:
            return False
    return True


def _first_ephemeral() -> int:
    try:
        return int(EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768

"""A state folder: who runs in it, what `instance.json` says, and where things lie.

STATE/lock           held (flock) by the supervisor as long as it lives; its pid is inside
STATE/instance.json  `Instance`; written by the supervisor alone, whole or not at all
STATE/logs/          a file for each service, and the one of the start before
STATE/etcd/          etcd's data
STATE/objects/       the object store
STATE/tls/           certificates that `impala up --tls` made
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Self

import msgspec

from services.cli.errors import CliError
from services.cli.tls_files import TlsFiles

DEFAULT_NAME = "default"
TEMPORARY_PREFIX = "run-"
LOCK_TRIES, LOCK_RETRY_S = 5, 0.02


class ServiceInfo(msgspec.Struct, kw_only=True):
    """One line of `impala ps`. `pid` is null while the process waits to be started again; `since`
    is in Unix seconds."""

    service: str
    name: str
    pid: int | None
    ports: dict[str, int]
    since: int | None
    restarts: int
    phase: str


class Instance(msgspec.Struct, kw_only=True):
    """What runs in a state folder."""

    pid: int
    """The supervisor's."""
    since: int
    phase: str
    """"starting", "ready" or "draining"."""
    url: str
    model: str
    """As requests name it."""
    source: str
    """As `--model` named it."""
    precision: str
    """Of the weights that are served; before "ready": as it was asked for."""
    etcd: str
    """host:port."""
    services: list[ServiceInfo]
    tls: str = ""
    """Folder with tls.crt, tls.key and ca.crt, by which all of it is reached; empty: no TLS."""

    @property
    def tls_files(self) -> TlsFiles | None:
        return TlsFiles(Path(self.tls)) if self.tls else None


def state_home(env: Mapping[str, str] = os.environ) -> Path:
    """Where unnamed state folders lie: $XDG_STATE_HOME/impala or ~/.local/state/impala."""
    base = env.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "impala"


class StateDir:
    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def named(cls, path: Path | None) -> Self:
        """The folder a user named, or the default one."""
        return cls((path or state_home() / DEFAULT_NAME).expanduser().absolute())

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def etcd(self) -> Path:
        return self.path / "etcd"

    @property
    def objects(self) -> Path:
        return self.path / "objects"

    @property
    def tls(self) -> Path:
        return self.path / "tls"

    def make(self) -> None:
        """Only its owner may look inside. Raises CliError."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            for folder in (self.logs, self.objects, self.etcd):
                folder.mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise _unusable(self.path, error) from error

    def owner(self) -> int | None:
        """Pid of the supervisor that runs here; None if none does."""
        try:
            with self._lock_file.open("r+") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return int(file.read().strip() or 0)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _unusable(self.path, error) from error
        return None

    def instance(self) -> Instance | None:
        """What runs here now. A record that its supervisor left behind by dying is removed."""
        if self.owner() is None:
            with contextlib.suppress(OSError):
                self._instance_file.unlink(missing_ok=True)
            return None
        try:
            return msgspec.json.decode(self._instance_file.read_bytes(), type=Instance)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def require(self) -> Instance:
        """Raises CliError if nothing runs here."""
        instance = self.instance()
        if instance is None:
            raise CliError(
                f"No instance runs in {self.path}: start one with 'impala up', or name its --state."
            )
        return instance

    def write(self, instance: Instance) -> None:
        data = msgspec.json.format(msgspec.json.encode(instance), indent=1)
        fresh = self._instance_file.with_suffix(".new")
        fresh.write_bytes(data + b"\n")
        fresh.replace(self._instance_file)

    def forget(self) -> None:
        self._instance_file.unlink(missing_ok=True)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """This process runs here; the kernel lets go when it dies. CliError if another one does."""
        self.make()
        with _lock(self._lock_file) as taken:
            if not taken:
                raise CliError(
                    f"Another 'impala up' (pid {self.owner() or 'unknown'}) runs in {self.path}: "
                    "stop it with 'impala down', or give another --state."
                )
            try:
                yield
            finally:
                self.forget()

    @property
    def _lock_file(self) -> Path:
        return self.path / "lock"

    @property
    def _instance_file(self) -> Path:
        return self.path / "instance.json"


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[bool]:
    """Whether it was taken; held until the end. Raises CliError for a file that cannot be made."""
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("a+b", buffering=0))
            taken = _take(file)
        except OSError as error:
            raise _unusable(path.parent, error) from error
        yield taken


def _take(file: BinaryIO) -> bool:
    for _ in range(LOCK_TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate(0)
            file.write(f"{os.getpid()}\n".encode())
            return True
        # Who only looks (`owner`) holds it for an instant. flock can wait without end or not at
        # all: so it is tried again, LOCK_TRIES times at most.
        time.sleep(LOCK_RETRY_S)
    return False


def _unusable(folder: Path, error: OSError) -> CliError:
    return CliError(
        f"The state folder {folder} cannot be used: {error.strerror}; give another --state."
    )


def temporary(env: Mapping[str, str] = os.environ) -> StateDir:
    """A fresh folder for one command. Folders that killed commands left behind are removed."""
    home = state_home(env)
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise _unusable(home, error) from error
    for left in home.glob(f"{TEMPORARY_PREFIX}*"):
        # A folder without a lock was made a moment ago by a command that is about to take it.
        if (left / "lock").exists() and StateDir(left).owner() is None:
            StateDir(left).remove()
    return StateDir(home / f"{TEMPORARY_PREFIX}{os.getpid()}-{os.urandom(4).hex()}")

"""A real etcd process for tests: loopback, free ports, a data folder that goes with it."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from libs.clock.polling import wait_until
from libs.demo.etcd import resolve_etcd
from libs.rpc.tls import ServerTls

READY_WITHIN_S = 20.0
STOP_WITHIN_S = 10.0


@functools.cache
def etcd_binary() -> Path:
    """The one that a local start uses."""
    return resolve_etcd().path


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class EtcdProcess:
    """`with EtcdProcess() as etcd: EtcdClient([etcd.endpoint])`.

    `kill`, `stop` and `start` keep ports and data: what a restart must survive. `extra` are further
    flags of etcd. Data is not synced to disk: a killed process loses nothing by that, a lost
    machine would.
    """

    def __init__(
        self,
        *,
        tls: ServerTls | None = None,
        extra: tuple[str, ...] = (),
        name: str = "test",
        timing: tuple[int, int] = (20, 200),
    ) -> None:
        """timing: heartbeat and election timeout in ms; by default those of one that is alone and
        need not wait long for others to stand before it leads."""
        self.name = name
        self.port, self._peer_port, self._health_port = free_ports(3)
        self.peers = {name: f"http://127.0.0.1:{self._peer_port}"}
        """Name and URL of each member of its cluster."""
        self._timing = timing
        self.endpoint = f"127.0.0.1:{self.port}"
        self.folder = Path(tempfile.mkdtemp(prefix="impala-etcd-"))
        self._tls = tls
        self._extra = extra
        self._process: subprocess.Popen[bytes] | None = None
        self._password = ""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("etcd is not running")
        return self._process.pid

    def start(self) -> None:
        """Returns once it answers."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Starts it; in a cluster it answers once a majority runs."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command(), stdout=log, stderr=log)

    def wait_ready(self) -> None:
        process = self._process
        assert process is not None
        if not wait_until(
            self._healthy,
            READY_WITHIN_S,
            every_s=0.02,
            hopeless=lambda: process.poll() is not None,
        ):
            raise RuntimeError(f"etcd did not start:\n{self.log()}")

    def stop(self) -> None:
        """SIGTERM, and waits: the ports are free afterwards."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, and waits."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing is answered. Returns once it stands still."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Kills it if it runs, and removes the data."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def enable_auth(self, *, password: str) -> None:
        """From now on etcd asks for a user; there is one, `root`."""
        self._post("auth/user/add", {"name": "root", "password": password})
        self._post("auth/role/add", {"name": "root"})
        self._post("auth/user/grant", {"user": "root", "role": "root"})
        self._post("auth/enable", {})
        self._password = password

    def change_password(self, password: str) -> None:
        """Root's; who is logged in with the one before is so no more."""
        self._post("auth/user/changepw", {"name": "root", "password": password})
        self._password = password

    def reclaim_space(self, revision: int) -> None:
        """What an operator does whose etcd has used up its quota: forgets history up to that
        revision, gives its space back, ends the alarm."""
        self._post("kv/compaction", {"revision": str(revision), "physical": True})
        self._post("maintenance/defragment", {})
        for alarm in self._post("maintenance/alarm", {"action": "GET"}).get("alarms", ()):
            self._post("maintenance/alarm", {"action": "DEACTIVATE", **alarm})

    def empty(self) -> None:
        """Removes the data of one that does not run: it starts as a new one."""
        if self._process is not None:
            raise RuntimeError("etcd runs")
        shutil.rmtree(self.folder / "data")

    def _post(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        headers = {"Authorization": self._token()} if self._password else {}
        request = urllib.request.Request(
            f"http://{self.endpoint}/v3/{path}", json.dumps(body).encode(), headers
        )
        with urllib.request.urlopen(request, timeout=READY_WITHIN_S) as answer:
            answered: dict[str, Any] = json.loads(answer.read())
        return answered

    def _token(self) -> str:
        password, self._password = self._password, ""
        try:
            login = {"name": "root", "password": password}
            return str(self._post("auth/authenticate", login)["token"])
        finally:
            self._password = password

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def _command(self) -> list[str]:
        client = f"{'https' if self._tls else 'http'}://{self.endpoint}"
        peer = self.peers[self.name]
        heartbeat_ms, election_ms = self._timing
        return [
            str(etcd_binary()),
            f"--name={self.name}",
            f"--data-dir={self.folder / 'data'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster={','.join(f'{name}={url}' for name, url in self.peers.items())}",
            # Answers /health without TLS and without a certificate.
            f"--listen-metrics-urls=http://127.0.0.1:{self._health_port}",
            *self._tls_flags(),
            "--log-level=error",
            "--unsafe-no-fsync",
            f"--heartbeat-interval={heartbeat_ms}",
            f"--election-timeout={election_ms}",
            *self._extra,
        ]

    def _tls_flags(self) -> list[str]:
        if self._tls is None:
            return []
        flags = [f"--cert-file={self._tls.cert}", f"--key-file={self._tls.key}"]
        if self._tls.client_ca:
            flags += ["--client-cert-auth", f"--trusted-ca-file={self._tls.client_ca}"]
        return flags

    def _healthy(self) -> bool:
        request = b"GET /health HTTP/1.0\r\n\r\n"
        try:
            with socket.create_connection(
                ("127.0.0.1", self._health_port), timeout=1
            ) as connection:
                connection.sendall(request)
                answer = b"".join(iter(lambda: connection.recv(4096), b""))
        except OSError:
            return False
        return b'"health":"true"' in answer

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(how)
            process.send_signal(signal.SIGCONT)
        try:
            process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def leads(self) -> bool:
        """Whether it is the leader of its cluster."""
        status = self._post("maintenance/status", {})
        return bool(status["leader"] == status["header"]["member_id"])


@contextmanager
def etcd_cluster(members: int = 3) -> Iterator[list[EtcdProcess]]:
    """One etcd of several processes; each can be killed, paused and started again by itself."""
    with ExitStack() as stack:
        cluster = [EtcdProcess(name=f"e{at}", timing=(50, 500)) for at in range(members)]
        peers = {name: url for each in cluster for name, url in each.peers.items()}
        for each in cluster:
            stack.callback(each.close)
            each.peers = peers
            each.launch()
        for each in cluster:
            each.wait_ready()
        yield cluster

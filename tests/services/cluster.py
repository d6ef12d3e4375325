"""Services as processes beside a real etcd, each started, told to stop and started again by name.

Nothing supervises them: what a test ends stays ended. Model servers are the scripted ones, whose
answers are known (services/modelserver/testing.py).
"""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import grpc
import httpx

from libs.rpc import ClientTls, connect
from libs.testing.etcd import free_ports
from libs.testing.tls import MountedSecret
from libs.testing.waiting import eventually
from services.cli.supervisor.probes import grpc_serving
from services.router.tests.tiny_model import make_tiny_model

MODEL = "scripted"
HOST = "127.0.0.1"
WITHIN_S = 60.0
ALL = ("kvstore", "leap", "scheduler", "modelserver", "router")
"""One of each, in an order in which each finds what it needs."""
TROUBLE = ("Traceback", "Task was destroyed", "never retrieved")


@dataclass(slots=True)
class Member:
    """One process, where it listens, and how it is called: without TLS for None."""

    name: str
    port: int
    http_port: int
    log: Path
    tls: ClientTls | None = None
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0

    @property
    def service(self) -> str:
        return self.name.partition("-")[0]

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{HOST}:{self.http_port}"

    def channel(self) -> grpc.aio.Channel:
        return connect(self.address, self.tls)

    def http(self, timeout_s: float = WITHIN_S) -> httpx.AsyncClient:
        """With the certificates of now, as every new client."""
        verify: ssl.SSLContext | bool = True
        if self.tls is not None:
            verify = ssl.create_default_context(cafile=self.tls.ca)
        return httpx.AsyncClient(
            trust_env=False, timeout=timeout_s, base_url=self.url, verify=verify
        )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def said(self) -> str:
        return self.log.read_text(errors="replace")


@dataclass
class Cluster:
    """`async with Cluster(folder, etcd.endpoint) as cluster`; leaving kills what runs."""

    folder: Path
    etcd: str
    flags: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Of a service, or of one member, besides those that it needs."""
    secret: MountedSecret | None = None
    """All members' and their clients' `--tls`; None = without. The etcd may have its own flags."""
    members: dict[str, Member] = field(default_factory=dict)

    async def __aenter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.model.exists():
            make_tiny_model(self.model)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for member in self.members.values():
            if member.process is not None:
                member.process.kill()
                await asyncio.to_thread(member.process.wait)

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def objects(self) -> Path:
        return self.folder / "objects"

    def __getitem__(self, name: str) -> Member:
        """The member, whether it runs or not; it keeps its ports for all its lives."""
        if name not in self.members:
            port, http_port = free_ports(2)
            log, tls = self.folder / f"{name}.log", self.secret.client if self.secret else None
            self.members[name] = Member(name, port, http_port, log, tls)
        return self.members[name]

    # ---- processes

    def start(self, name: str, *flags: str, env: Mapping[str, str] | None = None) -> Member:
        """The process, which is not ready yet."""
        member = self[name]
        assert member.process is None or member.process.poll() is not None, f"{name} runs"
        with member.log.open("ab") as log:
            member.process = self.spawn(member, flags, log, env or {})
        member.starts += 1
        return member

    def spawn(
        self, member: Member, flags: Sequence[str], err: IO[bytes] | int, env: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self.command(member), *flags], stdout=err, stderr=err, env=os.environ | env
        )

    def command(self, member: Member) -> list[str]:
        service = member.service
        module = "modelserver.testing" if service == "modelserver" else f"{service}.main"
        flags = ["--member", member.name, "--port", str(member.port), "--etcd", self.etcd]
        match service:
            case "router":
                self.objects.mkdir(exist_ok=True)
                flags += ["--http-port", str(member.http_port), "--no-auth"]
                flags += ["--objects", str(self.objects)]
            case "scheduler":
                self.objects.mkdir(exist_ok=True)
                flags += ["--objects", str(self.objects), "--election-ttl-s", "10"]
            case "modelserver":
                flags += ["--model", str(self.model), "--model-name", MODEL]
                flags += ["--precision", "float32", "--kv-bytes", "1MiB"]
        flags += ["--tls", str(self.secret.path)] if self.secret else []
        flags += [*self.flags.get(service, ()), *self.flags.get(member.name, ())]
        return [sys.executable, "-P", "-m", f"services.{module}", *flags]

    async def up(self, *names: str) -> None:
        """Starts them all and returns once they are ready, and batches have a job."""
        for name in names:
            self.start(name)
        for name in names:
            await self.ready(name)
        routers = [name for name in names if self[name].service == "router"]
        if routers and any(self[name].service == "modelserver" for name in names):
            await self.make_job(routers[0])

    async def make_job(self, router: str) -> None:
        async with self[router].http() as client:
            made = await client.post("/imp/v1/jobs", json={"model": MODEL})
            assert made.is_success, made.text

    async def ready(self, name: str) -> None:
        """Health says SERVING; of a router, that it knows a model server too."""
        member = self[name]
        assert member.process is not None
        probe = grpc_serving(member.address, member.tls)

        async def serves() -> bool:
            assert member.process is not None
            if (code := member.process.poll()) is not None:
                raise AssertionError(f"{name} ended with {code}:\n{member.said()[-3000:]}")
            return await probe() and (member.service != "router" or await self._knows(member))

        await eventually(serves, within_s=WITHIN_S)

    async def _knows(self, router: Member) -> bool:
        """Of a cluster without model servers nothing is asked."""
        if not any(each.service == "modelserver" and each.starts for each in self.members.values()):
            return True
        try:
            async with router.http() as client:
                return (await client.get("/ready")).is_success
        except httpx.HTTPError:
            return False

    def signal(self, name: str, number: signal.Signals) -> None:
        os.kill(self[name].pid, number)

    async def ended(self, name: str, within_s: float = WITHIN_S) -> int:
        """Its exit code."""
        process = self[name].process
        assert process is not None
        return await asyncio.to_thread(process.wait, within_s)

    async def stop(self, name: str) -> int:
        """SIGTERM, and its exit code."""
        self.signal(name, signal.SIGTERM)
        return await self.ended(name)

    def complaints(self) -> dict[str, str]:
        """What no service may say: by member, the log from there on."""
        found = {}
        for name, member in self.members.items():
            said = member.said() if member.log.exists() else ""
            at = min((said.find(each) for each in TROUBLE if each in said), default=-1)
            if at >= 0:
                found[name] = said[max(0, at - 300) : at + 2000]
        return found

    def channel(self, name: str) -> grpc.aio.Channel:
        return self[name].channel()

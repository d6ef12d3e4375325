"""A real cluster of processes that are started again when they die, and what can be done to them.

Every member is reached by the others, and reaches etcd, through a proxy of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import httpx

from libs.testing.clock_shift import env_for, shift
from libs.testing.waiting import eventually
from services.cli.core.backoff import Backoff
from services.cli.core.supervision import Phase, Unit
from services.cli.launch import CHILD_ENV
from services.cli.net import PortPicker
from services.cli.supervisor.probes import every, grpc_serving, http_ok
from services.cli.supervisor.service import Service
from services.cli.supervisor.supervisor import Supervisor
from tests.robustness.etcds import etcd_service, make_nodes
from tests.robustness.faults import ALWAYS, CLOCK_KINDS, Ground, Kind, Leases, service_of
from tests.robustness.proxy import HOST, Proxy
from tests.robustness.store import FolderStore, S3Store, Store

MODEL = "robust"
START_WITHIN_S = 120.0
ELECTION_TTL_S = 2
MEMBER_TTL_S = 10.0
"""libs.cluster.membership's."""
LEASES = Leases(ELECTION_TTL_S, MEMBER_TTL_S)
BACKOFF = Backoff(first_s=0.1, longest_s=1.0, healthy_s=1.0)
TROUBLE = ("Traceback", "Task was destroyed", "never retrieved")

Engine = Literal["fake", "demo"]


@dataclass(frozen=True, slots=True)
class Shape:
    """engine: fake answers by a script (services/modelserver/testing.py), demo is the real model.
    step_s: how long an engine step of the fake one takes."""

    engine: Engine = "fake"
    routers: int = 2
    schedulers: int = 2
    modelservers: int = 2
    step_s: float = 0.02
    model: str = ""
    """Its folder or alias; the fake engine's tokenizer."""
    # So little KV that blocks are evicted, and come back from the kvstore.
    kv_bytes: str = "8KiB"
    max_seqs: int = 4
    proxied: bool = True
    """Without, nothing is in the way of a measurement; a member cannot be cut off."""
    flags: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Of a service, besides those that it needs."""
    objects: Literal["folder", "s3"] = "folder"
    etcd_nodes: int = 1
    clocks: bool = False
    """Every service follows a clock of its own, which can be put forth and back."""


class Cluster:
    """`async with Cluster(shape) as cluster`: entered when all of it is ready. Main thread only."""

    def __init__(self, shape: Shape) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="impala-robustness-"))
        self.keep = False
        """Leave the folder behind, for whoever looks into what went wrong."""
        self._shape = shape
        self._picker = PortPicker()
        self._etcd = make_nodes(shape.etcd_nodes, self._picker)
        self._store: Store | None = None
        self._proxies: dict[str, list[Proxy]] = {}
        self._stack = contextlib.AsyncExitStack()
        self._paused: set[str] = set()
        self.http: dict[str, str] = {}
        """Router -> URL."""
        self.grpc: dict[str, str] = {}
        """Router -> address of its gRPC API."""

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            self.keep = True
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()
        if not self.keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def members(self) -> list[str]:
        return [process.name for process in self._supervisor.processes()]

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def pids(self) -> dict[str, int]:
        """Of the processes that run."""
        return {each.name: each.pid for each in self._supervisor.processes() if each.pid}

    def all_up(self) -> bool:
        """Every process is ready, and none is paused."""
        up = all(process.phase is Phase.UP for process in self._supervisor.processes())
        return up and not self._paused

    def complaints(self) -> dict[str, int]:
        """What no service may say, whatever dies around it: how often each did."""
        counts = {}
        for path in sorted(self.logs.glob("*.log*")):
            text = path.read_text(errors="replace")
            if found := sum(text.count(trouble) for trouble in TROUBLE):
                counts[path.name] = found
        return counts

    # ---- what can be done to a member

    def kill(self, members: Sequence[str]) -> None:
        for pid in self._pids(members):
            _send(pid, signal.SIGKILL)

    def terminate(self, member: str) -> None:
        for pid in self._pids([member]):
            _send(pid, signal.SIGTERM)

    async def pause(self, members: Sequence[str], seconds: float) -> None:
        pids = list(self._pids(members))
        self._paused.update(members)
        try:
            for pid in pids:
                _send(pid, signal.SIGSTOP)
            await asyncio.sleep(seconds)
        finally:
            for pid in pids:
                _send(pid, signal.SIGCONT)
            self._paused.difference_update(members)

    def cut(self, member: str) -> None:
        for proxy in self._proxies[member]:
            proxy.cut()

    async def partition(self, member: str, seconds: float) -> None:
        proxies = self._proxies[member]
        try:
            for proxy in proxies:
                proxy.block()
            await asyncio.sleep(seconds)
        finally:
            for proxy in proxies:
                proxy.unblock()

    async def fill_disk(self, member: str, seconds: float) -> None:
        """Any write to a file fails (EFBIG); the process goes on."""
        pids = list(self._pids([member]))
        try:
            for pid in pids:
                _limit_files(pid, 0)
            await asyncio.sleep(seconds)
        finally:
            for pid in pids:
                _limit_files(pid, resource.RLIM_INFINITY)

    async def jump(self, members: Sequence[str], shift_s: float, seconds: float) -> None:
        """Their wall clocks are so far ahead, or behind, for a while."""
        clocks = [self._clock(member) for member in members]
        try:
            for clock in clocks:
                shift(clock, shift_s)
            await asyncio.sleep(seconds)
        finally:
            for clock in clocks:
                shift(clock, 0.0)

    async def break_store(self, kind: Kind, seconds: float) -> None:
        assert self._store is not None
        async with self._store.failing(kind):
            await asyncio.sleep(seconds)

    @property
    def ground(self) -> Ground:
        """What can fail here."""
        assert self._store is not None
        kinds = set(ALWAYS | self._store.kinds)
        kinds |= CLOCK_KINDS if self._shape.clocks else frozenset()
        if len(self._etcd) > 2:
            kinds.add(Kind.QUORUM)
        return Ground(tuple(self.members), LEASES, frozenset(kinds))

    # ---- starting

    async def _start(self) -> None:
        self.logs.mkdir()
        s3 = self._shape.objects == "s3"
        store: S3Store | FolderStore = S3Store() if s3 else FolderStore(self.folder / "objects")
        await self._stack.enter_async_context(store)
        self._store = store
        services = [etcd_service(each, self._etcd, self.folder) for each in self._etcd]
        for name, module, flags in self._plan(store.url):
            more = self._shape.flags.get(service_of(name), ())
            services.append(await self._python(name, module, [*flags, *more]))
        # A cut etcd is one that no service reaches.
        ways = list(self._proxies.values())
        for at, node in enumerate(self._etcd):
            self._proxies[node.name] = [proxies[at] for proxies in ways]
        self._supervisor = Supervisor(services, self.logs, backoff=BACKOFF)
        running = asyncio.create_task(self._supervisor.run())
        self._stack.push_async_callback(self._stop, running)
        async with asyncio.timeout(START_WITHIN_S):
            await self._supervisor.settled.wait()
            await self._make_job()

    async def _make_job(self) -> None:
        """What batches run against; as soon as a router knows the model's servers."""
        url = next(iter(self.http.values()))
        async with httpx.AsyncClient(trust_env=False, base_url=url) as client:

            async def made() -> bool:
                return (await client.post("/imp/v1/jobs", json={"model": MODEL})).is_success

            await eventually(made, within_s=START_WITHIN_S)

    async def _stop(self, running: asyncio.Task[None]) -> None:
        """At once: a drain is a fault like others, and was tried."""
        self._supervisor.kill()
        await running

    def _plan(self, objects: str) -> Iterator[tuple[str, str, list[str]]]:
        shape = self._shape
        yield "kvstore", "services.kvstore.main", ["--memory-bytes", "64MiB"]
        yield "leap", "services.leap.main", []
        store = ["--objects", objects]
        for number in range(1, shape.schedulers + 1):
            ttl = ["--election-ttl-s", str(ELECTION_TTL_S)]
            yield f"scheduler-{number}", "services.scheduler.main", [*store, *ttl]
        model = ["--model", shape.model, "--model-name", MODEL, "--precision", "float32"]
        for number in range(1, shape.modelservers + 1):
            if shape.engine == "fake":
                kv = ["--kv-bytes", shape.kv_bytes, "--max-seqs", str(shape.max_seqs)]
                flags = [*kv, "--step-s", f"{shape.step_s}"]
                yield f"modelserver-{number}", "services.modelserver.testing", [*model, *flags]
            else:
                flags = ["--kv-bytes", "128MiB", "--max-seqs", "8", "--threads", "1"]
                yield f"modelserver-{number}", "services.modelserver.main", [*model, *flags]
        for number in range(1, shape.routers + 1):
            yield f"router-{number}", "services.router.main", [*store, "--no-auth"]

    async def _python(self, name: str, module: str, flags: list[str]) -> Service:
        port = self._picker.free()
        shown, etcds = await self._ways(name, port)
        ports, probe = {"grpc": port}, grpc_serving(f"{HOST}:{port}")
        if service_of(name) == "router":
            ports["http"] = self._picker.free()
            self.http[name] = f"http://{HOST}:{ports['http']}"
            self.grpc[name] = f"{HOST}:{port}"
            probe = every(probe, http_ok(f"{self.http[name]}/health"))
            flags = [*flags, "--http-port", str(ports["http"])]
        command = [sys.executable, "-P", "-m", module, "--member", name, "--port", str(port)]
        etcd = ",".join(f"{HOST}:{each}" for each in etcds)
        command += ["--advertise", f"{HOST}:{shown}", "--etcd", etcd, "--drain-s", "5"]
        return Service(
            service=service_of(name),
            unit=Unit(name, start_stage=1, stop_stage=0),
            command=[*command, *flags],
            ports=ports,
            probe=probe,
            env=self._env(name),
        )

    def _env(self, name: str) -> dict[str, str]:
        assert self._store is not None
        clock = env_for(self._clock(name)) if self._shape.clocks else {}
        return {**CHILD_ENV, **self._store.env, **clock}

    def _clock(self, name: str) -> Path:
        return self.folder / f"{name}.clock"

    async def _ways(self, name: str, port: int) -> tuple[int, list[int]]:
        """The ports by which the others reach a member, and by which it reaches etcd's nodes."""
        nodes = [node.port for node in self._etcd]
        if not self._shape.proxied:
            return port, nodes
        shown, *etcds = (self._picker.free() for _ in range(1 + len(nodes)))
        ways = [*zip(etcds, nodes, strict=True), (shown, port)]
        self._proxies[name] = [Proxy(listen, target) for listen, target in ways]
        for proxy in self._proxies[name]:
            await self._stack.enter_async_context(proxy)
        return shown, etcds

    def _pids(self, members: Sequence[str]) -> Iterator[int]:
        """Of those that run; one that is being started again has been hit already."""
        for process in self._supervisor.processes():
            if process.name in members and process.pid is not None:
                yield process.pid


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _limit_files(pid: int, most: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, hard))

"""The processes of a local instance: their commands, ports, order and readiness."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from libs.cpus import usable_cpus
from services.cli import net
from services.cli.core.supervision import Unit
from services.cli.state_dir import StateDir
from services.cli.supervisor.probes import every, grpc_serving, http_ok
from services.cli.supervisor.service import Probe, Service
from services.cli.tls_files import TlsFiles

DRAIN_S = 10.0
GRACE_S = DRAIN_S + 5.0
"""A service drains by itself within DRAIN_S; who needs longer hangs."""

# OpenMP's default barrier spins: a thread that waits takes the core from the one it waits for.
CHILD_ENV = {"OMP_WAIT_POLICY": "passive", "PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True, kw_only=True)
class PortWishes:
    """Ports that the user named; None = the default one."""

    http: int | None = None
    router: int | None = None
    scheduler: int | None = None
    modelserver: int | None = None
    kvstore: int | None = None
    leap: int | None = None
    etcd: int | None = None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What `impala up` was asked for. threads: of each model server; 0 = the cores shared evenly.
    kv_bytes: as typed, empty = the model server's default."""

    model: str
    name: str = ""
    precision: str = "auto"
    servers: int = 1
    threads: int = 0
    kv_bytes: str = ""
    auth: bool = False
    tls: bool = False
    tls_folder: Path | None = None
    """With `tls`: the user's own; None = one of the state folder, with certificates made here."""
    ports: PortWishes = field(default_factory=PortWishes)

    @property
    def served_name(self) -> str:
        return self.name or self.model

    @property
    def threads_each(self) -> int:
        return self.threads or max(1, usable_cpus() // self.servers)

    @property
    def source(self) -> str:
        """A path made absolute; an alias or a hub id as it is."""
        path = Path(self.model).expanduser()
        return str(path.absolute()) if path.exists() else self.model

    def tls_files(self, state: StateDir) -> TlsFiles | None:
        """None: without TLS."""
        return TlsFiles((self.tls_folder or state.tls).absolute()) if self.tls else None


@dataclass(frozen=True, kw_only=True)
class Launch:
    services: Sequence[Service]
    url: str
    etcd: str
    tls: TlsFiles | None


@dataclass(frozen=True, kw_only=True)
class _Place:
    """What every process is told, or asked by: where etcd is, and whose certificates hold."""

    etcd: str
    tls: TlsFiles | None

    def url(self, port: int) -> str:
        return f"{'https' if self.tls else 'http'}://{net.HOST}:{port}"

    def http_probe(self, port: int) -> Probe:
        return http_ok(f"{self.url(port)}/health", self.tls.context if self.tls else None)

    def grpc_probe(self, port: int) -> Probe:
        return grpc_serving(f"{net.HOST}:{port}", self.tls.client() if self.tls else None)


@dataclass(frozen=True, kw_only=True)
class _Ports:
    http: int
    router: int
    scheduler: int
    modelservers: Sequence[int]
    kvstore: int
    leap: int
    etcd: int
    etcd_peer: int

    @classmethod
    def pick(cls, wishes: PortWishes, servers: int, picker: net.PortPicker) -> _Ports:
        """Raises CliError for a port that was asked for, or HTTP's default one, and is in use.

        HTTP on any port means an instance beside others: then the defaults, which the others want
        too, are left alone.
        """

        def wanted(flag: str, given: int | None, default: int) -> net.Wanted:
            return net.wanted(flag, given, 0 if wishes.http == 0 else default)

        # The strict ones first: no pick of ours may be in their way.
        http = picker.pick(net.wanted("--http-port", wishes.http, net.HTTP, strict=True))
        router = picker.pick(wanted("--grpc-port", wishes.router, net.ROUTER))
        scheduler = picker.pick(wanted("--scheduler-port", wishes.scheduler, net.SCHEDULER))
        kvstore = picker.pick(wanted("--kvstore-port", wishes.kvstore, net.KVSTORE))
        leap = picker.pick(wanted("--leap-port", wishes.leap, net.LEAP))
        etcd = picker.pick(wanted("--etcd-port", wishes.etcd, net.ETCD))
        first = picker.pick(wanted("--modelserver-port", wishes.modelserver, net.MODELSERVER))
        return cls(
            http=http,
            router=router,
            scheduler=scheduler,
            modelservers=[first, *(picker.free() for _ in range(servers - 1))],
            kvstore=kvstore,
            leap=leap,
            etcd=etcd,
            etcd_peer=picker.free(),
        )


def plan(
    settings: Settings, state: StateDir, etcd_binary: Path, picker: net.PortPicker | None = None
) -> Launch:
    """Raises CliError for a port that cannot be had."""
    ports = _Ports.pick(settings.ports, settings.servers, picker or net.PortPicker())
    place = _Place(etcd=f"{net.HOST}:{ports.etcd}", tls=settings.tls_files(state))
    objects = ("--objects", str(state.objects))
    services = [
        _etcd(ports, state, etcd_binary, place),
        _python("kvstore", "kvstore", ports.kvstore, place, stop_stage=3),
        _python("leap", "leap", ports.leap, place, stop_stage=4),
        _python("scheduler", "scheduler", ports.scheduler, place, *objects, stop_stage=1),
        *_modelservers(settings, ports, place),
        _router(settings, ports, state, place),
    ]
    return Launch(services=services, url=place.url(ports.http), etcd=place.etcd, tls=place.tls)


def _etcd(ports: _Ports, state: StateDir, binary: Path, place: _Place) -> Service:
    client, peer = place.url(ports.etcd), place.url(ports.etcd_peer)
    command = [
        str(binary),
        "--name=impala",
        f"--data-dir={state.etcd}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=impala={peer}",
        "--logger=zap",
        "--log-level=warn",
        # Alone, it need not wait long for others to stand before it leads.
        "--heartbeat-interval=50",
        "--election-timeout=500",
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=10m",
        *(_etcd_tls(place.tls) if place.tls else ()),
    ]
    return Service(
        service="etcd",
        unit=Unit("etcd", start_stage=0, stop_stage=5, grace_s=GRACE_S),
        command=command,
        ports={"client": ports.etcd, "peer": ports.etcd_peer},
        # On the port that clients use, with the certificate that they show: it is open to no other.
        probe=place.http_probe(ports.etcd),
    )


def _etcd_tls(files: TlsFiles) -> Iterator[str]:
    """Clients, and peers if it ever gets some, must show a certificate of the CA."""
    for whom in ("", "peer-"):
        yield f"--{whom}cert-file={files.cert}"
        yield f"--{whom}key-file={files.key}"
        yield f"--{whom}trusted-ca-file={files.ca}"
        yield f"--{whom}client-cert-auth"


def _python(
    service: str, name: str, port: int, place: _Place, *flags: str, stop_stage: int
) -> Service:
    # -P: a folder named like one of our packages where the user stands must not take its place.
    command = [sys.executable, "-P", "-m", f"services.{service}.main"]
    command += ["--port", str(port), "--etcd", place.etcd, "--member", name]
    command += ["--tls", str(place.tls.folder)] if place.tls else []
    command += ["--drain-s", f"{DRAIN_S:g}", *flags]
    return Service(
        service=service,
        unit=Unit(name, start_stage=1, stop_stage=stop_stage, grace_s=GRACE_S),
        command=command,
        ports={"grpc": port},
        probe=place.grpc_probe(port),
        env=CHILD_ENV,
    )


def _modelservers(settings: Settings, ports: _Ports, place: _Place) -> list[Service]:
    flags = ["--model", settings.source, "--model-name", settings.served_name]
    flags += ["--precision", settings.precision, "--threads", str(settings.threads_each)]
    if settings.kv_bytes:
        flags += ["--kv-bytes", settings.kv_bytes]
    several = settings.servers > 1
    return [
        _python(
            "modelserver",
            f"modelserver-{number}" if several else "modelserver",
            port,
            place,
            *flags,
            stop_stage=2,
        )
        for number, port in enumerate(ports.modelservers, 1)
    ]


def _router(settings: Settings, ports: _Ports, state: StateDir, place: _Place) -> Service:
    flags = ["--http-port", str(ports.http), "--objects", str(state.objects)]
    flags += [] if settings.auth else ["--no-auth"]
    grpc = _python("router", "router", ports.router, place, *flags, stop_stage=0)
    return Service(
        service=grpc.service,
        unit=grpc.unit,
        command=grpc.command,
        ports={"http": ports.http, **grpc.ports},
        probe=every(grpc.probe, place.http_probe(ports.http)),
        env=grpc.env,
    )

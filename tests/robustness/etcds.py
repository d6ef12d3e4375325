"""The etcd under a cluster: one process, or several that agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from libs.testing.etcd import etcd_binary
from services.cli.core.supervision import Unit
from services.cli.net import PortPicker
from services.cli.supervisor.probes import http_ok
from services.cli.supervisor.service import Service
from tests.robustness.proxy import HOST


@dataclass(frozen=True, slots=True)
class EtcdNode:
    """name: `etcd` when it is alone, else `etcd-1` and so on."""

    name: str
    port: int
    peer_port: int

    @property
    def peer(self) -> str:
        return f"http://{HOST}:{self.peer_port}"


def make_nodes(count: int, picker: PortPicker) -> list[EtcdNode]:
    names = ["etcd"] if count == 1 else [f"etcd-{at}" for at in range(1, count + 1)]
    return [EtcdNode(name, picker.free(), picker.free()) for name in names]


def etcd_service(node: EtcdNode, nodes: Sequence[EtcdNode], folder: Path) -> Service:
    """Its data lies in `folder`, under its name."""
    client = f"http://{HOST}:{node.port}"
    return Service(
        service="etcd",
        unit=Unit(node.name, start_stage=0, stop_stage=1),
        command=[
            str(etcd_binary()),
            f"--name={node.name}",
            f"--data-dir={folder / node.name}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={node.peer}",
            f"--initial-advertise-peer-urls={node.peer}",
            f"--initial-cluster={','.join(f'{each.name}={each.peer}' for each in nodes)}",
            "--log-level=error",
            # A killed process loses nothing by it; a lost machine is not among the faults.
            "--unsafe-no-fsync",
            "--heartbeat-interval=50",
            "--election-timeout=500",
        ],
        ports={"client": node.port},
        probe=http_ok(f"{client}/health"),
    )

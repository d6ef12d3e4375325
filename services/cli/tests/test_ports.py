"""Which ports an instance takes."""

from __future__ import annotations

from pathlib import Path

from services.cli import net
from services.cli.launch import PortWishes, Settings, plan
from services.cli.state_dir import StateDir

DEFAULTS = {net.ROUTER, net.SCHEDULER, net.MODELSERVER, net.KVSTORE, net.LEAP, net.ETCD}


def ports_of(tmp_path: Path, wishes: PortWishes) -> set[int]:
    settings = Settings(model="m", servers=2, ports=wishes)
    launch = plan(settings, StateDir(tmp_path), Path("/bin/etcd"))
    return {port for service in launch.services for port in service.ports.values()}


def test_an_instance_with_http_anywhere_leaves_the_default_ports_to_others(tmp_path: Path) -> None:
    ports = ports_of(tmp_path, PortWishes(http=0))
    assert len(ports) == 9
    assert not ports & DEFAULTS


def test_a_port_that_was_asked_for_is_taken_all_the_same(tmp_path: Path) -> None:
    wanted = net.PortPicker().free()
    assert wanted in ports_of(tmp_path, PortWishes(http=0, scheduler=wanted))

"""Affinity and quotas of control groups, of both versions and at any height of the tree."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from libs.cpus import usable_cpus

ALLOWED = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("groups", "files", "cpus"),
    [
        ("", {}, ALLOWED),
        ("0::/\n", {"cpu.max": "max 100000"}, ALLOWED),
        ("0::/\n", {"cpu.max": "100000 100000"}, 1),
        ("0::/\n", {"cpu.max": "190000 100000"}, 1),
        ("0::/\n", {"cpu.max": "20000 100000"}, 1),
        ("0::/\n", {"cpu.max": "9900000 100000"}, ALLOWED),
        ("0::/pod/box\n", {"pod/box/cpu.max": "max 100000", "pod/cpu.max": "150000 100000"}, 1),
        ("0::/pod/box\n", {"pod/box/cpu.max": "", "cpu.max": "garbage"}, ALLOWED),
        (
            "4:memory:/m\n3:cpu,cpuacct:/box\n0::/\n",
            {
                "cpu,cpuacct/box/cpu.cfs_quota_us": "150000",
                "cpu,cpuacct/box/cpu.cfs_period_us": "100000",
            },
            1,
        ),
        (
            "3:cpu:/box\n",
            {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
            ALLOWED,
        ),
        (
            "3:cpuacct,cpu:/box\n",
            {"cpu/box/cpu.cfs_quota_us": "50000", "cpu/box/cpu.cfs_period_us": "100000"},
            1,
        ),
        ("3:cpuset:/box\n", {"cpu/cpu.cfs_quota_us": "50000"}, ALLOWED),
    ],
)
def test_what_may_be_used(groups: str, files: dict[str, str], cpus: int, tmp_path: Path) -> None:
    proc = tmp_path / "proc/self"
    proc.mkdir(parents=True)
    (proc / "cgroup").write_text(groups)
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert usable_cpus(tmp_path) == cpus


def test_this_process_may_use_some() -> None:
    assert 1 <= usable_cpus() <= ALLOWED

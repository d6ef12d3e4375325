"""How many CPUs this process may keep busy.

Not how many the machine has: an affinity may name some of them, and a container's quota
(`--cpus 2`, a pod's `limits.cpu`) gives their time to others, which the affinity does not show.
Threads beyond that wait for each other while none of them may run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def usable_cpus(root: Path = Path("/")) -> int:
    """At least 1. A quota counts by its whole CPUs. root: where /proc and /sys lie, for tests."""
    allowed = len(os.sched_getaffinity(0))
    quotas = (int(quota) for quota in _quotas(root))
    return max(1, min((allowed, *quotas)))


def _quotas(root: Path) -> Iterator[float]:
    """CPUs' worth of time of each control group that this process is in, up to the root."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2: one tree for all
            tree = root / "sys/fs/cgroup"
        elif "cpu" in controllers.split(","):
            tree = root / "sys/fs/cgroup" / controllers
            tree = tree if tree.is_dir() else root / "sys/fs/cgroup/cpu"
        else:
            continue
        group = PurePosixPath(path.lstrip("/"))
        for each in (group, *group.parents):
            quota = _quota(tree / each)
            if quota is not None:
                yield quota


def _quota(group: Path) -> float | None:
    """Of one group; None where it has none."""
    limit, _, period = _read(group / "cpu.max").partition(" ")
    if not limit:
        limit, period = (_read(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    try:
        allowed, whole = int(limit), int(period)
    except ValueError:  # "max", or no such file
        return None
    return allowed / whole if allowed > 0 and whole > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""

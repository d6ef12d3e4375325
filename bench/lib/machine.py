"""The machine and the versions that a result was taken on."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from libs.cpus import usable_cpus

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("torch", "grpcio", "protobuf", "uvloop")
VECTOR_FLAGS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd")


def machine_facts() -> dict[str, Any]:
    """Everything that a reader needs to tell whether two results may be compared."""
    cpu = cpu_facts(_read("/proc/cpuinfo"))
    return {
        **cpu,
        "cores": cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in VERSIONS},
        "commit": commit(),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY", ""),
    }


def cores() -> int:
    """Cores that this process may keep busy."""
    return usable_cpus()


def cpu_facts(cpuinfo: str) -> dict[str, Any]:
    """The model's name and the vector extensions that matter, from /proc/cpuinfo."""
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = fields.get("flags", fields.get("Features", "")).split()
    return {
        "cpu": fields.get("model name") or platform.processor() or "unknown",
        "vector": [flag for flag in VECTOR_FLAGS if flag in flags],
    }


def commit() -> str:
    """The commit of this tree, with a + when files differ from it; "" where git does not tell."""
    head = _git("rev-parse", "--short=12", "HEAD")
    return head + "+" if head and _git("status", "--porcelain", "-uno") else head


def _git(*words: str) -> str:
    try:
        done = subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""

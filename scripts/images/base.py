"""A base image where no registry can be reached: Debian with its Python, from the archive.

It stands in for python:3.11-slim (and debian:bookworm-slim, for etcd), which the Containerfiles
name: the same distribution, without documentation and translations.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from scripts.images.tools import CACHE, run

NAME = "localhost/impala-base:bookworm"
SUITE = "bookworm"
PACKAGES = "ca-certificates,python3,python3-venv"
LEFT_OUT = (
    *("var/cache/apt/archives", "var/lib/apt/lists/*", "var/log/*"),
    *("usr/share/doc/*", "usr/share/info/*", "usr/share/locale/*", "usr/share/man/*"),
)


def named_base() -> str | None:
    """The base that the user wants instead: $PYTHON_IMAGE."""
    return os.environ.get("PYTHON_IMAGE") or None


def ensure_base() -> str:
    """The stand-in's name; made if there is none yet. Raises ImagesError."""
    known = subprocess.run(
        ["buildah", "inspect", "--type", "image", NAME], capture_output=True, check=False
    )
    if known.returncode != 0:
        print("making the base image (about a minute)", flush=True)
        with tempfile.TemporaryDirectory(prefix="base-", dir=CACHE) as folder:
            _make(Path(folder))
    return NAME


def _make(folder: Path) -> None:
    root, archive = folder / "root", folder / "root.tar"
    mirror = run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages")
    run(
        *("debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE),
        *(root, mirror.split()[0]),
        log=CACHE / "debootstrap.log",
    )
    excludes = [f"--exclude=./{pattern}" for pattern in LEFT_OUT]
    run("tar", "-C", root, "--one-file-system", *excludes, "-cf", archive, ".")
    container = run("buildah", "from", "scratch").strip()
    run("buildah", "add", "--quiet", container, archive, "/")
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    run("buildah", "config", "--env", f"PATH={path}", container)
    run("buildah", "commit", "--quiet", "--rm", container, NAME)

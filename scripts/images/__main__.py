"""`make images`: builds the five services' images and etcd's, and tries them together.

Needs no container engine: buildah builds and runs in chroots, as root. $PYTHON_IMAGE names a base
other than the stand-in of `base`; pip's settings and $IMPALA_TORCH_INDEX hold as in scripts/setup.
Exit code 1 after one sentence that says what is wrong.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from scripts.images.base import ensure_base, named_base
from scripts.images.buildah import Image, build
from scripts.images.checks import check_files
from scripts.images.errors import ImagesError
from scripts.images.pip_settings import read_settings
from scripts.images.tools import ROOT, ensure_checkers, ensure_engine
from scripts.images.trial import try_images

SERVICES = ("router", "scheduler", "modelserver", "kvstore", "leap")


def build_all() -> dict[str, Image]:
    """The images by service, etcd's among them. Raises ImagesError."""
    base = named_base() or ensure_base()
    pip = read_settings(Path(sys.executable))
    arguments = {"PYTHON_IMAGE": base}
    torch = {"IMPALA_TORCH_INDEX": os.environ.get("IMPALA_TORCH_INDEX", "")}
    images = {}
    for service in SERVICES:
        file = ROOT / "services" / service / "Containerfile"
        extra = torch if service == "modelserver" else {}
        images[service] = timed(build, f"impala-{service}", file, arguments | extra, pip)
    file = ROOT / "examples/deploy/etcd/Containerfile"
    images["etcd"] = timed(build, "impala-etcd", file, {"DEBIAN_IMAGE": base}, pip)
    return images


def timed(action: Callable[..., Image], name: str, *arguments: object) -> Image:
    start = time.monotonic()
    image = action(name, *arguments)
    print(f"{name}: {image.size / 1e6:,.0f} MB, {time.monotonic() - start:.0f} s", flush=True)
    return image


def main() -> int:
    try:
        ensure_engine(with_base=named_base() is None)
        check_files(ensure_checkers())
        try_images(build_all())
    except ImagesError as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nimages: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

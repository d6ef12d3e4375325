"""Builds and loads the C++ kernels: gcc once per machine kind, ctypes, raw pointers.

The library lies in a cache named by a digest of the source, the flags and the CPU's features. No
compiler, or one that fails, is no error: the callers have a path through torch's own operators.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "cpp"
SOURCES = tuple(FOLDER / name for name in ("stack.cpp", "attention.cpp", "int8.cpp"))
HEADERS = tuple(sorted(FOLDER.glob("*.h")))
# Sums keep their order, so that a row's bits do not depend on its company: no -ffast-math.
FLAGS = (
    *("-O3", "-mprefer-vector-width=512", "-std=c++17", "-fPIC", "-shared"),
    *("-pthread", "-ffp-contract=fast", "-fno-trapping-math", "-fno-math-errno"),
)
COMPILE_TIMEOUT_S = 120

log = logging.getLogger(__name__)


@functools.cache
def native_library() -> ctypes.CDLL | None:
    """``load_native``, once a process."""
    return load_native()


def load_native() -> ctypes.CDLL | None:
    """The library, built if the cache has none; None (and a warning) where it cannot be built."""
    compiler = shutil.which("g++")
    if compiler is None:
        log.warning("no g++ on PATH: the model runs on torch's slower operators")
        return None
    try:
        path = _library_path()
        if not path.is_file():
            build(compiler, path)
        return open_library(path)
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("the C++ kernels could not be built, torch's slower operators serve: %s", error)
        return None


def build(compiler: str, path: Path, cpu: str = "native") -> None:
    """Compile to ``path``, which appears whole or not at all, whoever else builds it too.

    cpu: the kind to build for, as gcc's -march has it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=path.parent) as folder:
        built = Path(folder) / path.name
        command = [compiler, *FLAGS, f"-march={cpu}", *map(str, SOURCES), "-o", str(built)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S)
        if done.returncode != 0:
            raise OSError(f"{compiler} failed: {done.stderr.strip()[:500]}")
        built.replace(path)


def _library_path() -> Path:
    digest = hashlib.blake2b(digest_size=12)
    for source in (*SOURCES, *HEADERS):
        digest.update(source.read_bytes())
    digest.update(repr((FLAGS, platform.machine(), _cpu_features())).encode())
    cache = Path(os.environ.get("IMPALA_CACHE") or Path.home() / ".cache" / "impala")
    return cache.expanduser() / "kernels" / f"herd-{digest.hexdigest()}.so"


def _cpu_features() -> str:
    """-march=native depends on these; a cache may be shared by machines that differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def open_library(path: Path) -> ctypes.CDLL:
    """A built library with its functions' signatures."""
    library = ctypes.CDLL(str(path))
    pointer, whole, wide = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
    functions: dict[str, tuple[Any, list[Any]]] = {
        "herd_packed_bytes": (wide, [whole] * 3),
        "herd_scale_bytes": (wide, [whole] * 3),
        "herd_pack": (None, [whole, whole, whole, pointer, whole, whole, pointer, pointer]),
        "herd_attend": (None, [whole, pointer, whole, *[pointer] * 4]),
        "herd_multiply": (None, [whole, pointer, whole, pointer, whole, pointer]),
        "herd_stack_new": (pointer, [pointer, whole]),
        "herd_stack_delete": (None, [pointer]),
        "herd_stack_seconds": (None, [pointer, pointer]),
        "herd_stack_run": (None, [pointer, pointer, whole, whole]),
    }
    for name, (result, arguments) in functions.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library

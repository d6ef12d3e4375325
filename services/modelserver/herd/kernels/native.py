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

import torch

SOURCES = (Path(__file__).parent / "cpp" / "paged_decode.cpp",)
# No -ffast-math at link time: gcc would then switch denormals off for the whole process.
FLAGS = (
    *("-O3", "-march=native", "-mprefer-vector-width=512", "-std=c++17", "-fPIC", "-shared"),
    *("-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math", "-fno-math-errno"),
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
        log.warning("no g++ on PATH: decoding attention uses torch's slower operators")
        return None
    try:
        path = _library_path()
        if not path.is_file():
            build(compiler, path)
        return _declared(ctypes.CDLL(str(path)))
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("the C++ kernels could not be built, torch's slower operators serve: %s", error)
        return None


def build(compiler: str, path: Path) -> None:
    """Compile to ``path``, which appears whole or not at all, whoever else builds it too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=path.parent) as folder:
        built = Path(folder) / path.name
        command = [compiler, *FLAGS, *_openmp(), *map(str, SOURCES), "-o", str(built)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S)
        if done.returncode != 0:
            raise OSError(f"{compiler} failed: {done.stderr.strip()[:500]}")
        built.replace(path)


def _openmp() -> list[str]:
    """Link torch's own OpenMP runtime where it brings one: one pool of threads, not two."""
    bundled = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    return ["-fopenmp", "-Wl,--as-needed", *map(str, bundled[:1])]


def _library_path() -> Path:
    digest = hashlib.blake2b(digest_size=12)
    for source in SOURCES:
        digest.update(source.read_bytes())
    digest.update(repr((FLAGS, _openmp(), platform.machine(), _cpu_features())).encode())
    cache = Path(os.environ.get("IMPALA_CACHE") or Path.home() / ".cache" / "impala")
    return cache.expanduser() / "kernels" / f"herd-{digest.hexdigest()}.so"


def _cpu_features() -> str:
    """-march=native depends on these; a cache may be shared by machines that differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, wide, narrow = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    decode = library.herd_paged_decode
    decode.restype = None
    decode.argtypes = [pointer, wide, *[pointer] * 7, wide, *[narrow] * 4, ctypes.c_float, narrow]
    return library

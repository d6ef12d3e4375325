"""Generates the Python code of every protos/**/*.proto into gen/ (messages, gRPC stubs, .pyi).

Generated code is never committed, so this runs in every set-up; it is a no-op while no proto, this
script and the compiler have changed. What is under gen/ and no longer comes from a proto is
removed. Files are replaced one by one and only if they differ, so a running process never sees a
half-written module. Exit code 1, with protoc's own message, if a proto does not compile.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
GEN = ROOT / "gen"
STAMP = ".stamp"
LOCK = ".lock"
GENERATORS = ("grpcio-tools", "mypy-protobuf", "protobuf")


def fingerprint(protos: list[Path]) -> str:
    """A digest of everything that the output depends on."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for name in GENERATORS:
        digest.update(f"{name}=={version(name)}\n".encode())
    for path in protos:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(PROTOS)}:{len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def is_current(gen: Path, wanted: str) -> bool:
    """True if the stamp says so and every file that it lists is still there."""
    try:
        stamp, *outputs = (gen / STAMP).read_text().splitlines()
    except (FileNotFoundError, ValueError):
        return False
    return stamp == wanted and all((gen / output).is_file() for output in outputs)


def compile_protos(protos: list[Path], out: Path) -> int:
    """Runs protoc in this process; returns its exit code."""
    from grpc_tools import protoc

    # protoc finds the mypy plugins on PATH; they lie beside this interpreter.
    here = Path(sys.executable).parent
    os.environ["PATH"] = f"{here}{os.pathsep}{os.environ.get('PATH', '')}"
    well_known = Path(protoc.__file__).parent / "_proto"
    return int(
        protoc.main(
            [
                "protoc",
                f"--proto_path={PROTOS}",
                f"--proto_path={well_known}",
                f"--python_out={out}",
                f"--grpc_python_out={out}",
                f"--mypy_out=quiet:{out}",
                # As at run time: a method that is not overridden answers UNIMPLEMENTED.
                f"--mypy_grpc_out=quiet,generate_concrete_servicer_stubs:{out}",
                *(str(path.relative_to(PROTOS)) for path in protos),
            ]
        )
    )


def add_packages(out: Path) -> None:
    """Makes every folder of the output a package."""
    for folder in [path for path in out.rglob("*") if path.is_dir()]:
        (folder / "__init__.py").touch()


def install(out: Path, gen: Path) -> list[str]:
    """Makes gen equal to out, touching only what differs; returns the files' relative paths."""
    wanted = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    for name in wanted:
        source, target = out / name, gen / name
        if target.is_file() and target.read_bytes() == source.read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(source, target)
    return wanted


def remove_stale(gen: Path, keep: set[str]) -> None:
    """Removes the files that are not in keep, and the folders that hold none of them.

    Caches of bytecode stay: Python ignores those that have no source.
    """
    kept_folders = {parent for name in keep for parent in Path(name).parents}
    for folder, subfolders, names in os.walk(gen):
        relative = Path(folder).relative_to(gen)
        for name in list(subfolders):
            if name == "__pycache__":
                subfolders.remove(name)
            elif relative / name not in kept_folders:
                subfolders.remove(name)
                shutil.rmtree(Path(folder) / name)
        for name in names:
            if str(relative / name) not in keep:
                (Path(folder) / name).unlink()


def main() -> int:
    protos = sorted(PROTOS.rglob("*.proto"))
    GEN.mkdir(exist_ok=True)
    with (GEN / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = fingerprint(protos)
        if is_current(GEN, wanted):
            return 0
        # Inside gen, because os.replace must stay within one file system.
        with tempfile.TemporaryDirectory(prefix=".new-", dir=GEN) as folder:
            out = Path(folder)
            code = compile_protos(protos, out)
            if code != 0:
                return 1
            add_packages(out)
            outputs = install(out, GEN)
        remove_stale(GEN, keep={*outputs, STAMP, LOCK})
        (GEN / STAMP).write_text("\n".join([wanted, *outputs]) + "\n")
    print(f"generated {len(outputs)} files from {len(protos)} protos into gen/")
    return 0


if __name__ == "__main__":
    sys.exit(main())

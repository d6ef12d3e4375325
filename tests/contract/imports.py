"""What source files import, read without running them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import distribution, packages_distributions

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

from tests.contract.build_files import ROOT


@cache
def imports(file: str) -> frozenset[str]:
    """The modules that a file names in its imports, without the standard library's. Of
    `from a import b` both a and a.b are named, for b may be either."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, f"{file}: a relative import"
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(name for name in found if name.split(".")[0] not in sys.stdlib_module_names)


def own_files(file: str) -> set[str]:
    """The files of this repository that a file imports, as paths from the root."""
    paths = [name.replace(".", "/") for name in imports(file)]
    candidates = [f"{path}{end}" for path in paths for end in (".py", "/__init__.py")]
    return {path for path in candidates if (ROOT / path).is_file()}


def generated_files(file: str) -> set[str]:
    """The files made from this repository's protos that a file imports: the proto's path, but with
    _pb2.py or _pb2_grpc.py."""
    paths = {f"protos/{name.replace('.', '/')}" for name in imports(file)}
    made = {path for path in paths if path.endswith(("_pb2", "_pb2_grpc"))}
    return {f"{path}.py" for path in made if (ROOT / _proto_of(path)).is_file()}


def packages(file: str) -> dict[str, set[NormalizedName]]:
    """Each third-party module that a file imports, by its first name, with the installed packages
    that it may come from."""
    tops = {name.split(".")[0] for name in imports(file)}
    tops = {top for top in tops if not (ROOT / top).is_dir()}
    return {top: owners for top, owners in _owners().items() if top in tops}


@cache
def _owners() -> dict[str, set[NormalizedName]]:
    return {
        top: set(map(canonicalize_name, owners)) for top, owners in packages_distributions().items()
    }


def _proto_of(module: str) -> str:
    return module.removesuffix("_grpc").removesuffix("_pb2") + ".proto"


def required(names: Iterable[str]) -> set[NormalizedName]:
    """The packages and all that they require."""
    found, waiting = set[NormalizedName](), [canonicalize_name(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(_requirements(name))
    return found


@cache
def _requirements(name: str) -> frozenset[NormalizedName]:
    needed = map(Requirement, distribution(name).requires or ())
    here = (each for each in needed if not each.marker or each.marker.evaluate())
    return frozenset(canonicalize_name(each.name) for each in here)

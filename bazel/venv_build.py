"""Writes the @venv repository into the current folder; bazel/venv.bzl runs it in the .venv.

A package is a py_library over the files and folders of site-packages that are its own. Folders are
listed as such, not file by file: they change only when the package does.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement

SITE_PACKAGES = "site-packages"
HEAD = """\
load("@rules_python//python:defs.bzl", "py_library", "py_runtime", "py_runtime_pair")

package(default_visibility = ["//visibility:public"])

py_runtime(name = "runtime", interpreter = "python", python_version = "PY3")

py_runtime_pair(name = "runtimes", py3_runtime = ":runtime")

toolchain(
    name = "toolchain",
    toolchain = ":runtimes",
    toolchain_type = "@bazel_tools//tools/python:toolchain_type",
)
"""
LIBRARY = """
py_library(
    name = {name!r},
    data = {data!r},
    imports = [{imports!r}],
    deps = {deps!r},
)
"""
# -S: no site-packages and no .pth of the .venv; -P: nor the script's folder, which Python would
# take from the source tree, behind the sandbox's link; -B: no bytecode beside the sources.
INTERPRETER = '#!/bin/sh\nexec {python!r} -B -P -S "$@"\n'


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(package: Distribution) -> list[str]:
    """The packages that this one needs here, without extras."""
    needed = [Requirement(line) for line in package.requires or []]
    return sorted(
        {
            normalized(each.name)
            for each in needed
            if each.marker is None or each.marker.evaluate({"extra": ""})
        }
    )


def closure(names: Iterable[str]) -> dict[str, list[str]]:
    """Each package with its requirements; PackageNotFoundError if one is not installed."""
    found: dict[str, list[str]] = {}
    waiting = [normalized(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = requirements(distribution(name))
            waiting.extend(found[name])
    return found


def prefixes(package: Distribution) -> set[PurePosixPath]:
    """Every file of a package in site-packages, and every folder on the way to one.

    Without scripts (outside) and the bytecode of single-file modules (in a folder shared by all).
    """
    files = [PurePosixPath(file) for file in package.files or []]
    inside = [file for file in files if file.parts[0] not in ("..", "__pycache__")]
    return {path for file in inside for path in (file, *file.parents)} - {PurePosixPath(".")}


def own_paths(package: Distribution, owners: Counter[PurePosixPath]) -> list[str]:
    """The topmost files and folders that belong to this package alone (google/ is shared)."""
    own = {path for path in prefixes(package) if owners[path] == 1}
    top = sorted(str(path) for path in own if path.parent not in own)
    return [f"{SITE_PACKAGES}/{path}" for path in top]


def main() -> None:
    owners = Counter(path for each in distributions() for path in prefixes(each))
    packages = closure(sys.argv[1:])
    libraries = [
        LIBRARY.format(
            name=name,
            data=own_paths(distribution(name), owners),
            imports=SITE_PACKAGES,
            deps=[f":{each}" for each in packages[name]],
        )
        for name in sorted(packages)
    ]
    Path(SITE_PACKAGES).symlink_to(sysconfig.get_path("purelib"))
    Path("WORKSPACE").write_text("")
    Path("BUILD.bazel").write_text(HEAD + "".join(libraries))
    interpreter = Path("python")
    interpreter.write_text(INTERPRETER.format(python=sys.executable))
    interpreter.chmod(0o755)


if __name__ == "__main__":
    main()

"""Bazel builds and tests every core, library of the cores and proto, with what each one needs, and
its visibility says what .importlinter says.

Read from the BUILD files, so that whoever adds a file hears of it without Bazel; `make bazel` runs
the real one.
"""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest

from tests.contract.build_files import ROOT, Target, closure, targets
from tests.contract.imports import generated_files, own_files, packages, required

_RULES = configparser.ConfigParser()
_RULES.read(ROOT / ".importlinter")
_CORE = _RULES["importlinter:contract:core"]
LIBRARIES = [module.replace(".", "/") for module in _CORE["project"].split()]
CORES = sorted(
    str(path.relative_to(ROOT))
    for path in ROOT.glob("services/**/core")
    if "tests" not in path.parts
)
PYTHON = sorted(each.label for each in targets().values() if each.rule.startswith("py_"))
VENV = "@venv//:"


def python_files(folder: str) -> set[str]:
    return {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*.py")}


def files_of(rule: str) -> set[str]:
    return {file for each in targets().values() if each.rule == rule for file in each.files}


def core_library(core: str) -> Target:
    service = "/".join(core.split("/")[:2])
    return targets()[f"//{service}:{core.removeprefix(service + '/')}"]


def library(folder: str) -> Target:
    return targets()[f"//{folder}:{Path(folder).name}"]


def needs_cores_alone(test: str) -> bool:
    """True if all that a service's test imports are cores and their libraries, helpers included,
    and no conftest brings more. In tests/core it has to be so."""
    if "/tests/core/" in test:
        return True
    reached, waiting = set[str](), [test]
    while waiting:
        new = own_files(waiting.pop()) - reached
        reached |= new
        waiting.extend(file for file in new if "/tests/" in file)
    shared = any((folder / "conftest.py").exists() for folder in (ROOT / test).parents[:-3])
    beyond = [file for file in reached if not file.startswith((*CORES, *LIBRARIES))]
    return bool(reached) and not shared and all("/tests/" in file for file in beyond)


def written_python(target: Target) -> list[str]:
    """Its Python files but for the generated ones, which are not in the tree."""
    return sorted(each for each in target.files if each.endswith(".py") and (ROOT / each).is_file())


def files_of_tests(folder: str) -> set[str]:
    return {file for file in python_files(folder) if Path(file).name.startswith("test_")}


def test_there_is_something_to_cover() -> None:
    assert len(CORES) >= 6
    assert len(LIBRARIES) >= 3


@pytest.mark.parametrize("core", CORES)
def test_every_module_of_a_core_is_in_its_target(core: str) -> None:
    assert python_files(core) <= core_library(core).files


@pytest.mark.parametrize("folder", LIBRARIES)
def test_every_module_of_a_library_of_the_cores_is_in_its_target(folder: str) -> None:
    assert python_files(folder) - python_files(f"{folder}/tests") <= library(folder).files


@pytest.mark.parametrize("folder", LIBRARIES)
def test_every_test_of_a_library_of_the_cores_is_a_target(folder: str) -> None:
    assert not files_of_tests(folder) - files_of("py_test")


def test_every_test_that_needs_cores_alone_is_a_target() -> None:
    pure = {file for file in files_of_tests("services") if needs_cores_alone(file)}
    assert not pure - files_of("py_test")


def test_every_proto_is_compiled() -> None:
    protos = {str(path.relative_to(ROOT)) for path in ROOT.glob("protos/**/*.proto")}
    modules = {
        proto.replace(".proto", end) for proto in protos for end in ("_pb2.py", "_pb2_grpc.py")
    }
    assert protos <= targets()["//protos:sources"].files
    assert modules <= {file for each in closure("//protos:protos") for file in each.files}


@pytest.mark.parametrize("core", CORES)
def test_a_core_is_for_its_service_alone(core: str) -> None:
    service = "/".join(core.split("/")[:2])
    assert core_library(core).visibility == (f"//{service}:__subpackages__",)


@pytest.mark.parametrize("core", CORES)
def test_a_core_depends_on_nothing_that_cores_must_not_import(core: str) -> None:
    allowed = {"//services:services", *(library(folder).label for folder in LIBRARIES)}
    third_party = {VENV + name for name in _CORE["third_party"].split()}
    assert set(core_library(core).deps) <= allowed | third_party


@pytest.mark.parametrize("label", PYTHON)
def test_what_a_target_imports_is_declared(label: str) -> None:
    reached = list(closure(label))
    files = {file for each in reached for file in each.files}
    direct = {dep for each in reached for dep in each.deps if dep.startswith(VENV)}
    installed = required(dep.removeprefix(VENV) for dep in direct)
    for file in written_python(targets()[label]):
        assert not own_files(file) - files, file
        assert not generated_files(file) - files, file
        undeclared = {top for top, owners in packages(file).items() if not owners & installed}
        assert not undeclared, file

"""What the BUILD files declare, without Bazel: they and python.bzl are read as the Python that
their language is a subset of, with rules that only take notes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUILD = "BUILD.bazel"
RULES_FROM = "@rules_python//python:defs.bzl"
RULES = ("filegroup", "genrule", "py_binary", "py_library", "py_test")


@dataclass(frozen=True, slots=True)
class Target:
    """One target. Files are paths from the root; deps and visibility are labels in full."""

    rule: str
    label: str
    files: frozenset[str]
    deps: tuple[str, ...]
    visibility: tuple[str, ...]


@cache
def targets() -> Mapping[str, Target]:
    """Every target of the repository by its label, such as "//libs/hashing:hashing"."""
    found = [target for path in _build_files() for target in _Package(path.parent).targets()]
    return {target.label: target for target in found}


def closure(label: str) -> Iterator[Target]:
    """The target and all that it depends on in this repository."""
    waiting, seen = [label], set[str]()
    while waiting:
        target = targets().get(waiting.pop())
        if target and target.label not in seen:
            seen.add(target.label)
            waiting.extend(target.deps)
            yield target


def _build_files() -> list[Path]:
    ignored = [ROOT / line for line in (ROOT / ".bazelignore").read_text().split()]
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path not in ignored]
    nested = [build for folder in folders for build in folder.rglob(BUILD)]
    kept = [path for path in nested if not any(path.is_relative_to(each) for each in ignored)]
    return [ROOT / BUILD, *sorted(kept)]


class _Package:
    """Runs one BUILD file; the macros that it loads run with this package as theirs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = "" if folder == ROOT else str(folder.relative_to(ROOT))
        self._targets: list[Target] = []

    def targets(self) -> list[Target]:
        self._run(self._folder / BUILD, {**self._native(), "exports_files": _nothing})
        return self._targets

    def _run(self, path: Path, names: dict[str, Any]) -> dict[str, Any]:
        def load(label: str, *wanted: str) -> None:
            loaded = self._native()
            if label != RULES_FROM:
                file = ROOT / label.removeprefix("//").replace(":", "/")
                loaded = self._run(file, {"native": SimpleNamespace(**self._native())})
            names.update({name: loaded[name] for name in wanted})

        names["load"] = load
        exec(compile(path.read_text(), str(path), "exec"), names)
        return names

    def _native(self) -> dict[str, Any]:
        rules = {rule: self._recorder(rule) for rule in RULES}
        return {**rules, "glob": self._glob, "package_name": lambda: self._name}

    def _recorder(self, rule: str) -> Callable[..., None]:
        def record(name: str, **attributes: Any) -> None:
            listed = [*attributes.get("srcs", ()), *attributes.get("data", ())]
            files = [self._label(each) for each in listed]
            target = Target(
                rule,
                self._label(name),
                frozenset(each.removeprefix("//").replace(":", "/") for each in files),
                tuple(self._label(each) for each in attributes.get("deps", ())),
                tuple(attributes.get("visibility", ())),
            )
            self._targets.append(target)

        return record

    def _label(self, name: str) -> str:
        if not name.startswith(("//", "@")):
            return f"//{self._name}:{name.removeprefix(':')}"
        return name if ":" in name else f"{name}:{name.rsplit('/', 1)[-1]}"

    def _glob(self, include: Sequence[str], exclude: Sequence[str] = ()) -> list[str]:
        return sorted(self._matches(include) - self._matches(exclude))

    def _matches(self, patterns: Sequence[str]) -> set[str]:
        paths = {path for pattern in patterns for path in self._folder.glob(pattern)}
        own = {path for path in paths if path.is_file() and self._owner(path) == self._folder}
        return {str(path.relative_to(self._folder)) for path in own}

    def _owner(self, path: Path) -> Path:
        return next(folder for folder in path.parents if (folder / BUILD).exists())


def _nothing(*_: Any, **__: Any) -> None:
    return None

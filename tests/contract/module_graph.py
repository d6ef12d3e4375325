"""What a module of ours needs in order to run: the modules that it imports, through and through."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (ROOT, ROOT / "gen")


@dataclass(slots=True)
class Needs:
    """ours: files by module. others: top-level names, not of the standard library, by the first
    module that imports them."""

    ours: dict[str, Path] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)


def file_of(module: str) -> Path | None:
    """The source of one of our modules; None for any other."""
    relative = Path(*module.split("."))
    for root in SOURCES:
        for path in (root / relative.with_suffix(".py"), root / relative / "__init__.py"):
            if path.is_file():
                return path
    return None


def needs_of(modules: Iterable[str]) -> Needs:
    """Imports inside functions count too: they run sooner or later."""
    needs, waiting = Needs(), list(modules)
    while waiting:
        module = waiting.pop()
        path = file_of(module)
        if module in needs.ours or path is None:
            continue
        needs.ours[module] = path
        waiting += [module.rpartition(".")[0]] if "." in module else []
        for name in imported(path):
            top = name.partition(".")[0]
            if file_of(name) is not None:
                waiting.append(name)
            elif file_of(top) is None and top not in sys.stdlib_module_names:
                needs.others.setdefault(top, module)
    return needs


def imported(path: Path) -> Iterator[str]:
    """Dotted names; of `from a import b`, both a and a.b, which may be a module."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path} has a relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)

"""The README knows every command, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from services.cli.main import app

README = Path(__file__).parents[3] / "README.md"
ROW = re.compile(r"^\| `([a-z ]+)` \|", re.MULTILINE)


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    children = getattr(command, "commands", None)
    if children is None:
        yield " ".join(path)
        return
    for name, child in children.items():
        yield from commands(child, (*path, name))


def test_the_readme_lists_every_command_once() -> None:
    listed = ROW.findall(README.read_text())
    assert sorted(listed) == sorted(commands(typer.main.get_command(app)))

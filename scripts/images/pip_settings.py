"""pip's settings of this machine, for a build that happens in a container.

What pip uses here (files and PIP_... variables alike) becomes one pip.conf that the build reads as
a secret; the folders and files of this machine that it names are mounted at the same paths.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SET_BY_THE_BUILD = frozenset({"cache-dir", "no-cache-dir", "progress-bar", "require-virtualenv"})
FILE_URL = "file://"


@dataclass(frozen=True, slots=True)
class PipSettings:
    """conf: the text of a pip.conf. mounts: absolute paths that it names and that exist here."""

    conf: str
    mounts: tuple[Path, ...]


def read_settings(python: Path) -> PipSettings:
    """What the pip beside `python` would use."""
    listed = subprocess.run(
        [python, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    return parse_settings(listed.stdout)


def parse_settings(listed: str) -> PipSettings:
    """From the output of `pip config list`: lines of `section.key='value'`.

    The environment's (section `:env:`) come before files', as pip has it. Only what holds for every
    command or for `pip install` is kept.
    """
    values: dict[str, str] = {}
    for rank in ("global", "install", ":env:"):
        for line in listed.splitlines():
            section, _, assignment = line.partition(".")
            key, found, text = assignment.partition("=")
            if found and section == rank and key not in SET_BY_THE_BUILD:
                values[key] = str(ast.literal_eval(text))
    lines = [f"{key} = {' '.join(value.split())}\n" for key, value in sorted(values.items())]
    return PipSettings("".join(["[global]\n", *lines]), tuple(_paths(values.values())))


def _paths(values: Iterable[str]) -> list[Path]:
    paths = {path for value in values for word in value.split() if (path := _path(word))}
    return sorted(path for path in paths if path.exists())


def _path(word: str) -> Path | None:
    """An index of files links to packages that lie beside it: of that, the folder above."""
    if word.startswith(FILE_URL):
        return Path(word.removeprefix(FILE_URL)).parent
    return Path(word) if word.startswith("/") else None

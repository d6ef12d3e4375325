"""A benchmark's result: a table for the reader, and one JSON object as the last line of stdout."""

from __future__ import annotations

import argparse
import json
import operator
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.lib.machine import cores, machine_facts
from bench.lib.processes import OTHERS_WARN, others_cpu, read_cpu
from bench.lib.stats import rounded

_COMPARE: dict[str, Callable[[float, float], bool]] = {">=": operator.ge, "<=": operator.le}


@dataclass(frozen=True, slots=True)
class Target:
    """A value and what it ought to be, as in `Target("x", 0.4, ">= 0.5")`."""

    name: str
    value: float
    goal: str

    @property
    def ok(self) -> bool:
        """ValueError for a goal that is not `>= NUMBER` or `<= NUMBER`."""
        sign, _, number = self.goal.partition(" ")
        if sign not in _COMPARE:
            raise ValueError(f"a goal is '>= NUMBER' or '<= NUMBER', not {self.goal!r}")
        return _COMPARE[sign](self.value, float(number))

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "value": rounded(self.value),
            "goal": self.goal,
            "ok": self.ok,
        }


@dataclass
class Result:
    """What a benchmark found; `figures` may nest."""

    name: str
    machine: dict[str, Any]
    figures: dict[str, Any]
    targets: list[Target] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "machine": self.machine,
            "figures": self.figures,
            "targets": [target.as_json() for target in self.targets],
        }


class Bench:
    """One run: progress on stderr, tables on stdout, the JSON object at the end."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name = name
        self.quick: bool = options.quick
        self._json: Path | None = options.json
        self._out = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 110)
        self._err = Console(file=sys.stderr, highlight=False)
        self._before = read_cpu()

    def say(self, text: str) -> None:
        """Progress."""
        self._err.print(f"{self.name}: {text}", markup=False, soft_wrap=True)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """The first column is text, the others figures."""
        table = Table(title=title, title_justify="left")
        for at, column in enumerate(columns):
            table.add_column(column, justify="left" if at == 0 else "right")
        for row in rows:
            table.add_row(*row)
        self._out.print(table)

    def finish(self, figures: dict[str, Any], targets: Sequence[Target] = ()) -> Result:
        """Print targets and the object. Missed targets are shown, they are no failure."""
        others = others_cpu(self._before, read_cpu(), cores())
        machine = {**machine_facts(), "others_cpu": round(others, 3), "quick": self.quick}
        result = Result(self.name, machine, figures, list(targets))
        if targets:
            self.table(
                "targets",
                ("name", "value", "goal", "ok"),
                [(t.name, f"{t.value:.3g}", t.goal, "yes" if t.ok else "NO") for t in targets],
            )
        note = f"other processes used {others:.0%} of the CPU"
        if others > OTHERS_WARN:
            note += ": do not quote these figures, ratios are doubtful too"
        self.say(note)
        self._write(json.dumps(result.as_json()))
        return result

    def _write(self, line: str) -> None:
        if self._json is not None:
            self._json.parent.mkdir(parents=True, exist_ok=True)
            self._json.write_text(line + "\n", encoding="utf-8")
        sys.stdout.flush()
        print(line, flush=True)


def arguments(name: str, about: str) -> argparse.ArgumentParser:
    """The parser with what every benchmark takes."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=about)
    parser.add_argument("--quick", action="store_true", help="under 2 minutes, rougher")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the JSON object here too")
    return parser

"""How things are shown: results on stdout, progress and remarks on stderr.

On a terminal progress is rewritten in place; elsewhere (a file, a pipe, CI) it is plain lines, few.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TextIO, TypeVar

import orjson
from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as RichProgress
from rich.status import Status
from rich.table import Table

from services.cli.core.progress import Progress, unanswered_word
from services.cli.supervisor.supervisor import Happened

Item = TypeVar("Item")

PLAIN_EVERY_S = 5.0
UNBOUNDED_WIDTH = 1000


def out() -> Console:
    return _console(sys.stdout)


def err() -> Console:
    return _console(sys.stderr)


def _console(file: TextIO) -> Console:
    # A file or a pipe has no width: nothing is folded there, so that each row is a line.
    if file.isatty():
        return Console(file=file, highlight=False)
    return Console(file=file, highlight=False, soft_wrap=True, width=UNBOUNDED_WIDTH)


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    data = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    sys.stdout.write(data.decode())


def say(text: str) -> None:
    err().print(text, markup=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Columns whose name ends in `>` are aligned to the right."""
    shown = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        right = column.endswith(">")
        shown.add_column(column.rstrip(">"), justify="right" if right else "left", overflow="fold")
    for row in rows:
        shown.add_row(*(_cell(value) for value in row))
    _print_rows(shown)


def listing(
    items: Sequence[Item],
    columns: Sequence[str],
    row: Callable[[Item], Sequence[object]],
    *,
    as_json: bool,
) -> None:
    """What the `list` commands print: a row for each item, or the items as they came."""
    if as_json:
        print_json(items)
    else:
        table(columns, map(row, items))


def pairs(title: str, rows: Iterable[tuple[str, object]]) -> None:
    shown = Table(title=title, title_justify="left", box=None, show_header=False, pad_edge=False)
    shown.add_column(style="dim" if sys.stdout.isatty() else "")
    shown.add_column(overflow="fold")
    for name, value in rows:
        shown.add_row(name, _cell(value))
    _print_rows(shown)


def _print_rows(shown: Table) -> None:
    """Without the blanks that fill a row up to the table's width."""
    console = out()
    with console.capture() as captured:
        console.print(shown)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def _cell(value: object) -> str:
    # What comes from a model or a file is text, never markup.
    return ("-" if value is None else str(value)).replace("[", "\\[")


def clock(unix_s: int | None) -> str | None:
    return None if unix_s is None else f"{datetime.fromtimestamp(unix_s):%Y-%m-%d %H:%M:%S}"


def dollars(value: float) -> str:
    """Enough digits to tell small costs apart."""
    digits = 2 if value >= 1 else 4 if value >= 0.01 else 6
    return f"${value:.{digits}f}"


def seconds(value: float) -> str:
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


class StartReporter:
    """Shows a start, restarts and a drain: a spinner on a terminal, lines elsewhere."""

    def __init__(self) -> None:
        self._console = err()
        self._began = time.monotonic()
        self._waiting: list[str] = []
        self._status: Status | None = None
        self._draining = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.settled()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False)

    def settled(self) -> None:
        """Nothing is under way any more: the spinner goes."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def news(self, happened: Happened) -> None:
        name = happened.name
        match happened.what:
            case "spawned":
                self._waiting.append(name)
            case "ready":
                self._done(name)
                took = f" ({self._elapsed()})"
                self._line(f"{name} is ready" + (" again" if happened.restarts else took))
            case "exited":
                self._done(name)
                how = f"signal {-happened.code}" if happened.code < 0 else f"code {happened.code}"
                self._line(f"{name} ended with {how}; started again in {happened.wait_s:g} s")
            case "stopping":
                self._begin_drain()
                self._waiting.append(name)
            case "stopped":
                self._done(name)
                self._line(f"{name} has stopped")
        self._spin()

    def _begin_drain(self) -> None:
        if not self._draining:
            self._draining, self._waiting = True, []
            self._line("draining")

    def _done(self, name: str) -> None:
        self._waiting = [each for each in self._waiting if each != name]

    def _line(self, text: str) -> None:
        self._console.print(f"  {text}", markup=False)

    def _spin(self) -> None:
        if not self._console.is_terminal:
            return
        if not self._waiting:
            self.settled()
            return
        verb = "stopping" if self._draining else "starting"
        text = f"{verb} {', '.join(self._waiting)}"
        if self._status is None:
            self._status = self._console.status(text)
            self._status.start()
        else:
            self._status.update(text)

    def _elapsed(self) -> str:
        return seconds(time.monotonic() - self._began)


class BatchProgress:
    """A bar of a batch's lines with its tokens per second, cost and time to go."""

    def __init__(self) -> None:
        self._console = err()
        self._bar: RichProgress | None = None
        self._task = TaskID(0)
        self._shown_at = float("-inf")

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed:.0f}/{task.total:.0f}"),
                TextColumn("{task.fields[detail]}"),
                console=self._console,
            )
            self._task = self._bar.add_task("validating", total=1, detail="")
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, text: str) -> None:
        """A line that stays, above the bar."""
        self._console.print(f"  {text}", markup=False)

    def show(self, status: str, progress: Progress) -> None:
        detail = describe(progress, status) if progress.total else ""
        if self._bar is not None:
            self._bar.update(
                self._task,
                description=status,
                completed=progress.done,
                total=max(progress.total, 1),
                detail=detail,
            )
            return
        now = time.monotonic()
        is_last = progress.total > 0 and progress.done == progress.total
        if is_last or now - self._shown_at >= PLAIN_EVERY_S:
            self._shown_at = now
            lines = f"{progress.done}/{progress.total} lines  " if progress.total else ""
            self._console.print(f"  {status}  {lines}{detail}", markup=False)


def describe(progress: Progress, status: str) -> str:
    """status: of the batch. A rate only once there is one: a prefill takes its time and generates
    nothing."""
    parts = [f"{progress.failed} failed"] if progress.failed else []
    if progress.unanswered:
        parts.append(f"{progress.unanswered} {unanswered_word(status)}")
    if progress.tokens:
        parts.append(f"{progress.tokens_per_s:.1f} tokens/s")
    else:
        parts.append(f"{seconds(progress.elapsed_s)} so far")
        if not progress.done and not progress.rerun and status == "in_progress":
            parts.append("no line has ended yet: prompts are computed first")
    if progress.rerun and status == "in_progress":
        lines = "1 line runs" if progress.rerun == 1 else f"{progress.rerun} lines run"
        parts.append(f"a server was lost: {lines} again")
    if progress.cost:
        parts.append(dollars(progress.cost))
    if progress.eta_s is not None:
        parts.append(f"{seconds(progress.eta_s)} to go")
    return "  ".join(parts)

"""What a history must obey. Pure; `check` says all that it does not.

* Every custom_id ends exactly once, over output and error file together, and a line that can be
  answered ends in the output file.
* A recorded line stays as it is and where it is; it is in the file in the end, byte for byte (so no
  recorded line was generated again).
* Its answer is its own.
* Counts never go down, never exceed the total, and sum to it in the end; the total never changes.
* A status never goes back; a terminal one never changes.
* The batch's usage is the sum over the output lines.
* A cancelled batch keeps what was recorded; the lines without an outcome end as cancelled. So does
  one that expired, with lines that end as expired; none does whose window no clock has left.
* The batch ends in time, and no answer was a 500.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from tests.robustness.faults import CLOCK_KINDS
from tests.robustness.history import (
    Created,
    Delivered,
    Event,
    Expected,
    History,
    Injected,
    Line,
    Polled,
    Read,
    Unclear,
    Usage,
)

TERMINAL = frozenset({"completed", "failed", "expired", "cancelled"})
_RANK = {"validating": 0, "in_progress": 1, "cancelling": 2, "finalizing": 2}
_END = 3


class Broken(StrEnum):
    """Which rule."""

    LOST = "lost"
    FAILED = "failed"
    """A line that can be answered ended as an error, or one that cannot was answered."""
    DOUBLED = "doubled"
    CHANGED = "changed"
    SWAPPED = "swapped"
    COUNTS = "counts"
    STATE = "state"
    USAGE = "usage"
    HUNG = "hung"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Violation:
    rule: Broken
    batch: str
    detail: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.detail} ({self.batch or 'no batch'})"


def check(history: History) -> list[Violation]:
    """Every violation; ValueError for a history that no recorder writes."""
    found = [
        Violation(Broken.UNCLEAR, "", f"{event.request} was answered {event.answer}")
        for event in history.events
        if isinstance(event, Unclear)
    ]
    jumped = any(
        isinstance(event, Injected) and event.fault.kind in CLOCK_KINDS for event in history.events
    )
    for batch, told in history.expected.items():
        expected = replace(told, expires=told.expires and jumped)
        events = history.of(batch)
        for rule, detail in _batch(events, expected, history.ended_at):
            found.append(Violation(rule, batch, detail))
    return found


def answers_of(lines: Iterable[Line]) -> dict[str, str]:
    """custom_id -> the text answered, of output lines."""
    return {_id(line): _answer(line) for line in lines if not line.is_error}


Found = Iterator[tuple[Broken, str]]


def _batch(events: list[Event], expected: Expected, ended_at: float) -> Found:
    polls = [event for event in events if isinstance(event, Polled)]
    delivered = [event for event in events if isinstance(event, Delivered)]
    recorded: list[Line] = []
    yield from _in_time(events, polls, expected, ended_at)
    yield from _statuses(polls, expected)
    yield from _counts(polls)
    yield from _reads(events, recorded)
    for files in delivered:
        yield from _ids(files.lines, expected)
        yield from _answers(files.lines, expected, polls[-1].status if polls else "")
        yield from _kept(recorded, files.lines)
        yield from _sums(files, polls)


def _in_time(
    events: list[Event], polls: list[Polled], expected: Expected, ended_at: float
) -> Found:
    promised = next((event.at for event in events if isinstance(event, Created)), None)
    if promised is None:
        raise ValueError("a batch that was never made is expected to end")
    end = next((poll.at for poll in polls if poll.status in TERMINAL), None)
    took = (ended_at if end is None else end) - promised
    if end is None or took > expected.within_s:
        last = polls[-1].status if polls else "unknown"
        yield Broken.HUNG, f"{last} after {took:.1f} s"
    elif not any(isinstance(event, Delivered) for event in events):
        yield Broken.HUNG, "it ended, and its results and files could not be read"


def _statuses(polls: list[Polled], expected: Expected) -> Found:
    before, rank = "", -1
    for poll in polls:
        now = _RANK.get(poll.status, _END)
        if before in TERMINAL and poll.status != before:
            yield Broken.STATE, f"{before} became {poll.status}"
        elif now < rank:
            yield Broken.STATE, f"{before} went back to {poll.status}"
        before, rank = poll.status, now
    ends = {"completed"} | ({"cancelled"} if expected.cancelled else set())
    ends |= {"expired"} if expected.expires else set()
    if before in TERMINAL and before not in ends:
        yield Broken.STATE, f"ended as {before}"


def _counts(polls: list[Polled]) -> Found:
    total = completed = failed = 0
    for poll in polls:
        told = f"{poll.completed} + {poll.failed} of {poll.total}"
        if poll.completed < completed or poll.failed < failed:
            yield Broken.COUNTS, f"{completed} + {failed} of {total} became {told}"
        if total and poll.total != total:
            yield Broken.COUNTS, f"the total went from {total} to {poll.total}"
        if poll.completed + poll.failed > poll.total:
            yield Broken.COUNTS, f"{told}: more than all"
        if (
            poll.status in ("completed", "cancelled", "expired")
            and poll.completed + poll.failed != poll.total
        ):
            yield Broken.COUNTS, f"{told} at the end"
        total, completed, failed = poll.total, poll.completed, poll.failed


def _reads(events: Iterable[Event], recorded: list[Line]) -> Found:
    """Fills `recorded`, in the order of recording."""
    for event in events:
        if not isinstance(event, Read):
            continue
        if event.after > len(recorded):
            raise ValueError("results were skipped")
        for at, line in enumerate(event.lines, event.after):
            if at == len(recorded):
                recorded.append(line)
            elif recorded[at] != line:
                yield Broken.CHANGED, f"result {at + 1} was {recorded[at].text}, is {line.text}"
        end = event.after + len(event.lines)
        if event.whole and end < event.known:
            yield Broken.LOST, f"of {event.known} results that were read, {end} are left"
    for name, times in Counter(_id(line) for line in recorded).items():
        if times > 1:
            yield Broken.DOUBLED, f"{name} was recorded {times} times"


def _ids(lines: Iterable[Line], expected: Expected) -> Found:
    times = Counter(_id(line) for line in lines)
    for name in expected.answers:
        if name not in times:
            yield Broken.LOST, f"{name} is in no file"
    for name, count in times.items():
        if count > 1:
            yield Broken.DOUBLED, f"{name} is in the files {count} times"
        if name not in expected.answers:
            yield Broken.SWAPPED, f"{name} is an answer to no line"


def _answers(lines: Iterable[Line], expected: Expected, ended: str) -> Found:
    excused = {
        "cancelled": "batch_cancelled" if expected.cancelled else None,
        "expired": "batch_expired" if expected.expires else None,
    }.get(ended)
    for line in lines:
        name = _id(line)
        wanted = expected.answers.get(name)
        if line.is_error and _code(line) == excused:
            continue
        if line.is_error != (wanted is None) and name in expected.answers:
            yield Broken.FAILED, f"{name} ended as {line.text}"
        elif not line.is_error and wanted is not None and _answer(line) != wanted:
            yield Broken.SWAPPED, f"{name} is answered {_answer(line)!r}, not {wanted!r}"


def _kept(recorded: Iterable[Line], lines: Iterable[Line]) -> Found:
    delivered = Counter(lines)
    for line in recorded:
        if not delivered[line]:
            yield Broken.CHANGED, f"was recorded and is in no file as it was: {line.text}"


def _sums(files: Delivered, polls: list[Polled]) -> Found:
    sums = Usage(*map(sum, zip(*(_usage(line) for line in files.lines), strict=True)))
    if sums != files.usage:
        yield Broken.USAGE, f"the batch says {files.usage}, its lines sum to {sums}"
    last = polls[-1] if polls else None
    outputs = sum(not line.is_error for line in files.lines)
    errors = len(files.lines) - outputs
    if last is not None and (last.completed, last.failed) != (outputs, errors):
        told = f"{last.completed} + {last.failed}"
        yield Broken.COUNTS, f"{told} lines were counted, the files have {outputs} + {errors}"


def _id(line: Line) -> str:
    return str(json.loads(line.text)["custom_id"])


def _body(line: Line) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(line.text)["response"]["body"]
    return body


def _answer(line: Line) -> str:
    return str(_body(line)["choices"][0]["message"]["content"])


def _code(line: Line) -> str:
    error: dict[str, Any] = json.loads(line.text).get("error") or {}
    return str(error.get("code", ""))


def _usage(line: Line) -> tuple[int, int, int]:
    if line.is_error:
        return 0, 0, 0
    usage = _body(line)["usage"]
    details = usage.get("prompt_tokens_details") or {}
    cached = int(details.get("cached_tokens") or 0)
    return int(usage["prompt_tokens"]), cached, int(usage["completion_tokens"])

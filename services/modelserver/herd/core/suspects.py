"""Whose fault it is when the model raises: halve the company until single steps are left.

An engine step that raises does not say which of the steps in it is to blame. So they are run again
in halves, and a half that raises in halves of its own: one step to blame among n costs about
2 log2(n) turns, and whoever runs without it has lost nothing. A step that raises alone when it is
run again is guilty (what raised once and then runs was not its fault), unless nobody else runs
either: then the engine is, and ending its steps one by one would only blame them for it.
"""

from collections import deque
from collections.abc import Sequence as Seq

from services.modelserver.herd.core.errors import EngineBroken

ALONE_LIMIT = 3
"""Steps in a row that raise alone, with nothing that runs between them, before the engine is held
to be broken: a lone step has no neighbour to prove that the engine still works."""


class Suspects:
    """A hunt lasts from a turn that raised until each step that was in it has run or raised alone.

    The owner asks `turn` whom to run next, and tells what came of it by `raised`, `ran` or `idle`.
    Each answers with the guilty: steps to end. They come when the hunt is over, once, and do not
    get a turn before. EngineBroken instead if all that were tried raised.
    """

    def __init__(self) -> None:
        self._groups: deque[tuple[str, ...]] = deque()
        self._guilty: list[str] = []
        self._some_ran = False
        self._alone_in_a_row = 0

    @property
    def turn(self) -> tuple[str, ...] | None:
        """The only steps that may run now; None: there is no suspicion, all may."""
        return self._groups[0] if self._groups else None

    def raised(self, steps: Seq[str]) -> list[str]:
        """The turn raised; `steps` are those that were fed in it, at least one, each once."""
        if not self._groups:
            self._groups.extend(_halves(steps))
            return []
        self._groups.popleft()
        if len(steps) > 1:
            self._groups.extendleft(reversed(_halves(steps)))
        else:
            self._guilty.append(steps[0])
            self._alone_in_a_row += 1
        return self._verdict()

    def ran(self) -> list[str]:
        """The turn ran to its end."""
        self._alone_in_a_row = 0
        if not self._groups:
            return []
        self._groups.popleft()
        self._some_ran = True
        return self._verdict()

    def idle(self) -> list[str]:
        """Those whose turn it was have nothing to run: ended, or without a block."""
        self._groups.popleft()
        return self._verdict()

    def forget(self, step: str) -> None:
        """The step has ended, for whatever reason: its id may come back as another step's."""
        self._groups = deque(tuple(s for s in group if s != step) for group in self._groups)
        self._guilty = [s for s in self._guilty if s != step]

    def _verdict(self) -> list[str]:
        if self._groups:
            return []
        guilty, self._guilty = self._guilty, []
        some_ran, self._some_ran = self._some_ran, False
        if not some_ran and (len(guilty) > 1 or self._alone_in_a_row >= ALONE_LIMIT):
            raise EngineBroken(
                f"{max(len(guilty), self._alone_in_a_row)} steps in a row raised alone and none ran"
            )
        return guilty


def _halves(steps: Seq[str]) -> list[tuple[str, ...]]:
    """Two groups, or one of a single step."""
    half = len(steps) // 2
    return [tuple(group) for group in (steps[:half], steps[half:]) if group]

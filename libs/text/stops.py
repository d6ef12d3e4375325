"""Stop strings in text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopScanner:
    """Passes text on until a stop string is complete; never lets a part of one through.

    Where stop strings overlap, the one completed first counts, and of those completed by the same
    character the longest; so the result does not depend on where the pieces end.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("a stop string is not empty")
        self._stops = tuple(dict.fromkeys(stops))
        self._held = ""
        self.hit: str | None = None
        """The stop string met; once set, nothing more is passed on."""

    def push(self, text: str, *, counts: bool = True) -> str:
        """The text that can go out now. What might be the start of a stop string is held back.

        counts: False = a stop string that ends in this text is text like any other; one that only
        begins in it may still be completed by later text.
        """
        if self.hit is not None:
            return ""
        seen = len(self._held)
        text = self._held + text
        cut = self._first_hit(text, seen) if counts else None
        if cut is None:
            cut = len(text) - self._open_length(text)
            self._held = text[cut:]
        else:
            self._held = ""
        return text[:cut]

    def finish(self) -> str:
        """What was held back, where the text ends without the stop string."""
        held, self._held = self._held, ""
        return held

    def _first_hit(self, text: str, seen: int) -> int | None:
        """Where the text is to be cut; sets `hit`. What ends in the first `seen` characters did not
        count when they came."""
        best: tuple[int, int] | None = None
        for stop in self._stops:
            start = text.find(stop, max(0, seen - len(stop) + 1))
            if start >= 0 and (best is None or (start + len(stop), start) < best):
                best = start + len(stop), start
                self.hit = stop
        return None if best is None else best[1]

    def _open_length(self, text: str) -> int:
        """Characters at the end of `text` that may be the start of a stop string."""
        longest = max(map(len, self._stops), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            tail = text[-length:]
            if any(len(stop) > length and stop.startswith(tail) for stop in self._stops):
                return length
        return 0

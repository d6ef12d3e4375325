"""Which numbers of a sequence without gaps were seen, each counted once."""

from __future__ import annotations


class Watermark:
    """Everything up to `level` was seen, and the few in `_ahead`."""

    def __init__(self, level: int = 0) -> None:
        self.level = level
        self._ahead: set[int] = set()

    def add(self, sequence: int) -> bool:
        """False when it was seen before."""
        if sequence <= self.level or sequence in self._ahead:
            return False
        self._ahead.add(sequence)
        self._close_gap()
        return True

    def raise_to(self, level: int) -> None:
        """Everything up to `level` is known to be seen; a lower one changes nothing."""
        if level > self.level:
            self.level = level
            self._ahead = {each for each in self._ahead if each > level}
            self._close_gap()

    def _close_gap(self) -> None:
        while self.level + 1 in self._ahead:
            self.level += 1
            self._ahead.remove(self.level)

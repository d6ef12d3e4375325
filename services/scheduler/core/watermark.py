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
        while self.level + 1 in self._ahead:
            self.level += 1
            self._ahead.remove(self.level)
        return True

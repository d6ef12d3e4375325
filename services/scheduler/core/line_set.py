"""A set of line numbers as a bitmap: an eighth of a byte a line of the file."""

from __future__ import annotations


class LineSet:
    def __init__(self) -> None:
        self._bits = bytearray()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, line: int) -> bool:
        byte, bit = divmod(line, 8)
        return byte < len(self._bits) and bool(self._bits[byte] >> bit & 1)

    def add(self, line: int) -> bool:
        """False when it was in already. `line` >= 0."""
        if line in self:
            return False
        byte, bit = divmod(line, 8)
        if byte >= len(self._bits):
            self._bits.extend(bytes(max(byte + 1 - len(self._bits), len(self._bits))))
        self._bits[byte] |= 1 << bit
        self._count += 1
        return True

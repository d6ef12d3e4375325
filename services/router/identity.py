"""What the router takes from outside to make something new: time and randomness."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol

from libs.clock import Clock, SystemClock
from libs.records import ids


class Entropy(Protocol):
    def __call__(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes ids. One a process; tests give their own clock and bytes."""

    clock: Clock = SystemClock()
    entropy: Entropy = os.urandom

    def unix_s(self) -> int:
        return int(self.clock.time())

    def unix_ms(self) -> int:
        return int(self.clock.time() * 1000)

    def file_id(self) -> str:
        return ids.file_id(self.unix_ms(), self.entropy(8))

    def batch_id(self) -> str:
        return ids.batch_id(self.unix_ms(), self.entropy(8))

    def run_id(self) -> str:
        return ids.run_id(self.unix_ms(), self.entropy(8))

    def job_id(self) -> str:
        return ids.job_id(self.entropy(4))

    def token(self) -> str:
        """16 random bytes, hex."""
        return self.entropy(16).hex()

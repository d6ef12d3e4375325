"""What the kvstore needs of the world around it."""

from typing import Protocol


class Now(Protocol):
    """Monotonic seconds; libs.clock.Clock has it."""

    def now(self) -> float: ...

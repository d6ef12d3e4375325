"""One step as its caller sees it: what the engine said, gathered until the caller reads it.

Written by the app on the event loop, read by the call that waits for it. Memory is bounded by the
step's own output.
"""

import asyncio

from libs.errors import ImpalaError
from services.modelserver.herd.engine.step import Admitted, ChoiceUpdate, StepEnded


class StepStream:
    """Ends exactly once: `failure` is what its caller is told if set, else `ended` is set. A step
    that the engine ran and failed on has both: the report tells what was computed."""

    def __init__(self, arrived: float) -> None:
        self.arrived = arrived
        self.admitted: Admitted | None = None
        self.first_token_at: float | None = None
        self.ended: StepEnded | None = None
        self.ended_at = 0.0
        self.failure: ImpalaError | None = None
        self.tokens_by_choice: dict[int, int] = {}
        self.finish_reasons: dict[int, str] = {}
        self._updates: list[ChoiceUpdate] = []
        self._changed = asyncio.Event()
        self._over = asyncio.Event()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    @property
    def completion_tokens(self) -> int:
        """Over all choices."""
        return sum(self.tokens_by_choice.values())

    def admit(self, admitted: Admitted) -> None:
        self.admitted = admitted

    def push(self, update: ChoiceUpdate, now: float) -> None:
        if update.tokens and self.first_token_at is None:
            self.first_token_at = now
        so_far = self.tokens_by_choice.get(update.choice, 0)
        self.tokens_by_choice[update.choice] = so_far + len(update.tokens)
        if update.finish is not None:
            self.finish_reasons[update.choice] = update.finish
        self._updates.append(update)
        self._changed.set()

    def end(self, ended: StepEnded, now: float, failure: ImpalaError | None = None) -> None:
        self.ended = ended
        self.ended_at = now
        self.failure = failure
        self._over.set()
        self._changed.set()

    def fail(self, failure: ImpalaError) -> None:
        if not self.is_over:
            self.failure = failure
            self._over.set()
            self._changed.set()

    def take(self) -> list[ChoiceUpdate]:
        """The updates since the last call."""
        updates, self._updates = self._updates, []
        self._changed.clear()
        return updates

    async def changed(self) -> None:
        """Returns when there is something to take or the step is over."""
        if not self.is_over:
            await self._changed.wait()

    async def over(self, at_most_s: float | None = None) -> None:
        """Returns when the step is over, or after `at_most_s` seconds."""
        try:
            async with asyncio.timeout(at_most_s):
                await self._over.wait()
        except TimeoutError:
            return

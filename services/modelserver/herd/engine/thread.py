"""The engine's own thread, and the only door between it and the event loop.

Into the thread: commands in a queue, applied between steps (an abort also between layers, so that
a long prefill chunk does not delay it). Out of it: one callback on the loop per engine step.
The event loop never waits for the model and the model never waits for the loop.
"""

import queue
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from services.modelserver.herd.core.errors import BatcherError, NeverFits
from services.modelserver.herd.core.plan import BatcherStats, FinishReason, SeqId
from services.modelserver.herd.engine.engine import Engine, StepInterrupted
from services.modelserver.herd.engine.step import FetchedBlock, StepOutcome, StepSpec


@dataclass(frozen=True, slots=True)
class Add:
    spec: StepSpec


@dataclass(frozen=True, slots=True)
class End:
    """End a step (`choice` None) or one of its choices."""

    step_id: str
    choice: int | None
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Fetched:
    seq_id: SeqId
    found: list[FetchedBlock]


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


@dataclass(frozen=True, slots=True)
class Refused:
    """A step that the batcher did not take."""

    step_id: str
    error: BatcherError | NeverFits


@dataclass(frozen=True, slots=True)
class HandOff:
    """All that one turn of the engine thread has to say."""

    outcome: StepOutcome
    refused: tuple[Refused, ...]
    stats: BatcherStats


Command = Add | End | Fetched


class EngineThread:
    """Runs an Engine. `deliver` and `died` are called in its thread: hand over and return."""

    def __init__(
        self,
        engine: Engine,
        deliver: Callable[[HandOff], None],
        died: Callable[[BaseException], None],
    ) -> None:
        self._engine = engine
        self._deliver = deliver
        self._died = died
        self._inbox: queue.SimpleQueue[Command | _Stop] = queue.SimpleQueue()
        self._early: list[Command] = []
        self._refused: list[Refused] = []
        self._stopping = False
        self._turns = 0
        self._turn_on: int | None = None
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, command: Command) -> None:
        """Never blocks; any thread."""
        self._inbox.put(command)

    @property
    def step(self) -> int | None:
        """Number of the engine step that runs now, another one each time; None while the engine
        waits for work. Any thread."""
        return self._turn_on

    def where(self) -> str:
        """What the thread is at, as a traceback; for people. Any thread."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "" if frame is None else "".join(traceback.format_stack(frame))

    def stop(self, timeout_s: float | None = None) -> None:
        """End the thread after the step it is in; steps still live get no further word."""
        self._inbox.put(_Stop())
        self._thread.join(timeout_s)

    # ---- in the engine thread

    def _main(self) -> None:
        try:
            while not self._stopping:
                self._turns += 1
                self._turn_on = self._turns
                self._turn()
        except BaseException as error:  # noqa: BLE001  # whoever waits for a step must be told
            self._died(error)

    def _turn(self) -> None:
        self._apply_waiting()
        if self._stopping:
            return
        outcome = self._engine.step(self._checkpoint)
        if (outcome is not None and not outcome.is_empty) or self._refused or outcome is not None:
            refused, self._refused = tuple(self._refused), []
            self._deliver(HandOff(outcome or StepOutcome(), refused, self._engine.batcher.stats()))
        if outcome is None:
            self._turn_on = None
            self._apply(self._inbox.get())

    def _apply_waiting(self) -> None:
        early, self._early = self._early, []
        for command in early:
            self._apply(command)
        while not self._inbox.empty():
            self._apply(self._inbox.get())

    def _apply(self, command: Command | _Stop) -> None:
        match command:
            case Add(spec):
                try:
                    self._engine.add(spec)
                except (BatcherError, NeverFits) as error:
                    self._refused.append(Refused(spec.step_id, error))
            case End(step_id, choice, reason):
                if choice is None:
                    self._engine.abort(step_id)
                else:
                    self._engine.end_choice(step_id, choice, reason)
            case Fetched(seq_id, found):
                self._engine.fetched(seq_id, found)
            case _Stop():
                self._stopping = True

    def _checkpoint(self) -> None:
        """Between layers: give up the step if one that it feeds was ended, so that its blocks are
        free within a layer's time; the others only lose this step's work, never a token."""
        interrupt = False
        while not self._inbox.empty():
            command = self._inbox.get()
            if isinstance(command, _Stop):
                self._stopping = interrupt = True
                continue
            self._early.append(command)
            if isinstance(command, End) and self._engine.is_in_step(command.step_id):
                interrupt = True
        if interrupt:
            raise StepInterrupted

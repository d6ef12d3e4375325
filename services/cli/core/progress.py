"""How far a batch is, in numbers for a bar."""

from __future__ import annotations

from dataclasses import dataclass

ETA_FROM = 0.25
"""Share of the lines that must be done before the rest is guessed from them: the first to end are
the short ones, and none ends while the prompts are prefilled."""


@dataclass(frozen=True, slots=True)
class Progress:
    """done, failed, unanswered, total: request lines. done: of any outcome; failed: tried without
    success; unanswered: left when the batch was cancelled or expired; rerun: not done, and run
    again because a model server or a router that ran them was lost. tokens: generated so far.
    elapsed_s: since the lines were known. tokens_per_s: generated, in that time. cost: USD.
    eta_s: None = not known yet."""

    done: int
    failed: int
    unanswered: int
    rerun: int
    total: int
    tokens: int
    elapsed_s: float
    tokens_per_s: float
    cost: float
    eta_s: float | None


class Meter:
    """Turns observations of a batch, with the time of each in seconds, into progress."""

    def __init__(self) -> None:
        self._began: float | None = None

    def observe(
        self,
        now: float,
        *,
        completed: int,
        failed: int,
        total: int,
        tokens: int,
        cost: float,
        unanswered: int = 0,
        rerun: int = 0,
    ) -> Progress:
        if self._began is None and total:
            self._began = now
        elapsed = now - self._began if self._began is not None else 0.0
        done = completed + failed + unanswered
        known = elapsed > 0 and ETA_FROM * total <= done < total
        return Progress(
            done=done,
            failed=failed,
            unanswered=unanswered,
            rerun=rerun,
            total=total,
            tokens=tokens,
            elapsed_s=elapsed,
            tokens_per_s=tokens / elapsed if elapsed > 0 else 0.0,
            cost=cost,
            eta_s=elapsed / done * (total - done) if known else None,
        )


def unanswered_word(status: str) -> str:
    """What became of the lines that a batch of this status left without an answer."""
    return status if status in ("cancelled", "expired") else "unanswered"

"""What the batcher refuses.

NeverFits (InvalidArgument)  the sequence needs more blocks than the pool has, alone
EngineBroken  no step runs any more, whichever is tried: nothing here can be served
BatcherError
├── DuplicateSequence  the id is still known (perhaps finished, its blocks not yet free)
├── UnknownSequence    no live sequence has that id
├── ProtocolError      calls out of order: plan before commit, a load nobody asked for
└── IntegrityError     check_integrity found the books wrong: a bug here
"""

from typing import Self

from libs.errors import InvalidArgument


class BatcherError(Exception):
    """Root of the batcher's errors."""


class EngineBroken(Exception):
    """Every step that was tried alone raised: the fault is not of a step."""


class NeverFits(InvalidArgument):
    """Prompt plus max_tokens need more KV blocks than the whole pool has."""

    @classmethod
    def of(cls, needed_blocks: int, pool_blocks: int) -> Self:
        return cls(
            f"prompt and max_tokens need {needed_blocks} KV blocks, the pool has {pool_blocks}",
            "EXCEEDS_KV_POOL",
            "max_tokens",
        )


class DuplicateSequence(BatcherError):
    """The sequence id is still in use."""


class UnknownSequence(BatcherError):
    """No live sequence has this id."""


class ProtocolError(BatcherError):
    """A call that the protocol of plan, commit and external loads does not allow now."""


class IntegrityError(BatcherError):
    """The batcher's books contradict each other."""

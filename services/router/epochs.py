"""Which leaders are still to be listened to."""

from __future__ import annotations

from libs import errors


class Epochs:
    """The newest leader's epoch seen here, per election: an older leader is refused.

    Epochs of different elections say nothing about each other.
    """

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}

    def check(self, election: str, epoch: int) -> None:
        """Raises Aborted."""
        newest = self._newest.get(election, 0)
        if epoch < newest:
            raise stale(epoch, newest)
        self._newest[election] = epoch


def stale(epoch: int, newest: int) -> errors.Aborted:
    return errors.Aborted(
        f"A leader of epoch {newest} is known here; this is {epoch}.", "EPOCH_STALE"
    )

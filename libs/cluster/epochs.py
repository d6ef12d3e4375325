"""Which leaders are still to be listened to."""

from __future__ import annotations

from libs import errors
from libs.cluster.client import EtcdClient
from libs.cluster.errors import ClusterError
from libs.cluster.keys import checked, election_leader


class Epochs:
    """The newest leader's epoch known here, per election: an older leader is refused.

    Another one than is known is believed once the election's own record says so, never on the
    caller's word: a number that nobody was elected with would shut out every leader to come. That
    goes for a lower one too: epochs are etcd's revisions, and begin anew with an etcd that lost its
    data. Epochs of different elections say nothing about each other.
    """

    def __init__(self, client: EtcdClient) -> None:
        self._client = client
        self._newest: dict[str, int] = {}

    async def check(self, election: str, epoch: int) -> None:
        """Raises Aborted for a leader that leads no more, or never did, InvalidArgument for an
        election that cannot be, ClusterUnavailable where etcd cannot be asked."""
        if epoch > self._newest.get(election, 0):
            elected = await self._elected(election)
            if elected:
                self._newest[election] = max(elected, self._newest.get(election, 0))
            if epoch > elected:
                raise errors.Aborted(
                    f"Nobody was elected to {election} with the epoch {epoch}.", "EPOCH_UNKNOWN"
                )
        if epoch <= 0:
            raise errors.InvalidArgument("A leader has an epoch.", "NO_EPOCH", "epoch")
        newest = self._newest.get(election, 0)
        if epoch < newest:
            if await self._leads_a_new_history(election, epoch):
                self._newest[election] = epoch
            else:
                raise stale(epoch, newest)

    async def _leads_a_new_history(self, election: str, epoch: int) -> bool:
        """False where etcd cannot be asked: then the older leader is one that was succeeded."""
        try:
            return await self._elected(election) == epoch
        except ClusterError:
            return False

    async def _elected(self, election: str) -> int:
        """The epoch of who leads now; 0 = nobody."""
        try:
            checked(election)
        except ValueError:
            raise errors.InvalidArgument("There is no such election.", "NO_ELECTION") from None
        entry = await self._client.get(election_leader(election))
        return 0 if entry is None else entry.create_revision


def stale(epoch: int, newest: int) -> errors.Aborted:
    return errors.Aborted(
        f"A leader of epoch {newest} is known here; this is {epoch}.", "EPOCH_STALE"
    )

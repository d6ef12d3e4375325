"""Checks across the batcher's books: each sequence in one place, each hold accounted for.

Each check raises IntegrityError. They are linear in everything, for tests and for idle moments.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from services.modelserver.herd.core.errors import IntegrityError
from services.modelserver.herd.core.external import ExternalLoads
from services.modelserver.herd.core.kv_blocks import KvBlocks
from services.modelserver.herd.core.plan import SeqId
from services.modelserver.herd.core.sequence import External, Sequence, Status, rank


@dataclass(frozen=True, slots=True)
class Places:
    """Where sequences can be."""

    sequences: Mapping[SeqId, Sequence]
    waiting: Seq[Sequence]
    running: Seq[Sequence]
    loads: ExternalLoads
    in_step: frozenset[SeqId]

    def producers(self) -> set[SeqId]:
        """Sequences that compute or load blocks now."""
        running = {seq.seq_id for seq in self.running}
        loading = {seq.seq_id for seq in self.loads.sequences()}
        return running | loading | self.in_step


def check_places(places: Places) -> None:
    """A live sequence is in one place, a finished one only where its blocks are in use."""
    queued = [*places.waiting, *places.running]
    live = [s.seq_id for s in places.sequences.values() if s.status is not Status.FINISHED]
    if sorted(seq.seq_id for seq in queued) != sorted(live):
        raise IntegrityError("queues and live sequences disagree")
    if {s.seq_id for s in places.running} != {
        s.seq_id for s in places.sequences.values() if s.status is Status.RUNNING
    }:
        raise IntegrityError("a sequence is running that is not in the batch, or the reverse")
    for seq in places.sequences.values():
        _check_sequence(places, seq)
    if list(places.running) != sorted(places.running, key=rank):
        raise IntegrityError("running sequences are out of order")


def _check_sequence(places: Places, seq: Sequence) -> None:
    in_step = seq.seq_id in places.in_step
    loading = seq.seq_id in places.loads
    if seq.status is Status.FINISHED and not (in_step or loading):
        raise IntegrityError(f"{seq.seq_id} is finished and was not forgotten")
    if (seq.external is External.PENDING) != loading:
        raise IntegrityError(f"{seq.seq_id} waits for a load that does not exist, or the reverse")
    if seq.block_table and not (in_step or seq.status is Status.RUNNING):
        raise IntegrityError(f"{seq.seq_id} holds blocks without running")


def check_blocks(places: Places, kv: KvBlocks) -> None:
    """Holders are exactly the tables and the loads; tables hold what their sequences computed."""
    tables = [block for seq in places.sequences.values() for block in seq.block_table]
    kv.check_integrity([*tables, *places.loads.holds()])
    for seq in places.sequences.values():
        kv.check_table(seq)

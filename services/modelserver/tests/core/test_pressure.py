"""Many sequences in a pool for two or three, with a tier below, under a seeded storm of aborts."""

import random

import pytest

from services.modelserver.herd.core.plan import BatcherStats, FinishReason
from services.modelserver.herd.core.sequence import Limits, Status
from services.modelserver.tests.core.factories import make_batcher, make_sequence, stream
from services.modelserver.tests.core.sim_engine import SimEngine, expected_output


class Storm:
    """Drives one engine to its end with choices from a seed."""

    def __init__(self, seed: int, *, external: bool) -> None:
        self.random = random.Random(seed)
        self.engine = SimEngine(
            make_batcher(
                self.random.randint(8, 16),
                self.random.choice([8, 33, 64, 256]),
                self.random.randint(2, 8),
                watermark_blocks=self.random.randint(0, 1),
                external_tier=external,
            )
        )
        self.prompts: dict[str, list[int]] = {}

    def run(self) -> BatcherStats:
        for number in range(24):
            self._add(number)
        for _ in range(20_000):
            if self.engine.plan() is None and not self.engine.lookups:
                break
            if self.random.random() < 0.03:
                self.engine.abort(self.random.choice(sorted(self.prompts)))
            self._answer()
            if self.engine.in_flight is not None:
                self.engine.commit()
            self.engine.batcher.check_integrity()
        return self.engine.batcher.stats()

    def _add(self, number: int) -> None:
        pick = self.random
        shared = stream(f"base{pick.randrange(3)}", pick.choice([0, 20, 64, 96, 128]))
        prompt = shared + stream(f"own{number}", pick.choice([0, 1, 5, 31, 32, 40]))
        prompt = prompt or [1]
        limits = Limits(pick.randint(1, 80))
        seq = make_sequence(f"s{number}", prompt, limits=limits, priority=pick.choice([0, 0, 1]))
        self.prompts[seq.seq_id] = prompt
        self.engine.add(seq)

    def _answer(self) -> None:
        for seq_id in sorted(self.engine.lookups):
            choice = self.random.random()
            if choice < 0.4:
                continue
            if choice < 0.45:
                self.engine.failed(seq_id)
            elif seq_id in self.engine.filling:
                self.engine.loaded(seq_id, len(self.engine.filling[seq_id]))
            else:
                self.engine.found(seq_id, self.engine.held_by_tier(seq_id))


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_every_sequence_ends_once_with_the_models_tokens(seed: int, external: bool) -> None:
    storm = Storm(seed, external=external)
    stats = storm.run()

    ended = {end.seq_id: end.reason for end in storm.engine.ends}
    assert len(storm.engine.ends) == len(ended) == len(storm.prompts)
    for seq_id, prompt in storm.prompts.items():
        seq = storm.engine.sequences[seq_id]
        assert seq.status is Status.FINISHED
        wanted = expected_output(prompt, seq.limits)
        assert seq.output == wanted[: seq.num_output]
        assert seq.num_output == len(wanted) or ended[seq_id] is FinishReason.ABORT
    assert (stats.used_blocks, stats.running, stats.waiting, stats.pending) == (0, 0, 0, 0)


def test_the_storms_do_reach_what_they_are_for() -> None:
    reached = [Storm(seed, external=True).run() for seed in range(6)]
    assert sum(stats.preemptions for stats in reached) > 10
    assert sum(stats.evictions for stats in reached) > 100
    assert sum(stats.external_tokens for stats in reached) > 500
    assert sum(stats.hit_tokens for stats in reached) > 1000

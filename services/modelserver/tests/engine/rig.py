"""A real engine over a tiny random model, driven by hand or in its thread."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

from services.modelserver.herd.core.batcher import Batcher, BatcherConfig
from services.modelserver.herd.core.plan import FinishReason
from services.modelserver.herd.core.sequence import Limits
from services.modelserver.herd.engine.engine import Engine, StepRunner
from services.modelserver.herd.engine.forward import go_on
from services.modelserver.herd.engine.kv_cache import KvCache
from services.modelserver.herd.engine.runner import Runner
from services.modelserver.herd.engine.sampling_params import SamplingParams
from services.modelserver.herd.engine.step import FetchedBlock, StepOutcome, StepSpec, StoredBlock
from services.modelserver.tests.models.factories import load_tiny

SALT = b"s" * 16
NAMESPACE = b"n" * 16
GREEDY = SamplingParams(temperature=0.0)


def make_engine(
    folder: Path,
    *,
    blocks: int = 64,
    max_batch_tokens: int = 64,
    max_seqs: int = 16,
    lower_tier: bool = False,
    wrap: Callable[[StepRunner], StepRunner] = lambda runner: runner,
) -> Engine:
    model = load_tiny(folder)
    kv = KvCache(blocks, model.config)
    batcher = Batcher(
        BatcherConfig(
            num_blocks=blocks,
            max_batch_tokens=max_batch_tokens,
            max_seqs=max_seqs,
            external_tier=lower_tier,
        )
    )
    ticks = itertools.count()
    return Engine(
        batcher,
        wrap(Runner(model, kv)),
        kv,
        NAMESPACE,
        now=lambda: float(next(ticks)),
        store_evicted=lower_tier,
    )


def spec(
    step_id: str,
    prompt: Sequence[int],
    max_tokens: int = 8,
    sampling: tuple[SamplingParams, ...] = (GREEDY,),
    *,
    salt: bytes = SALT,
    priority: int = 0,
) -> StepSpec:
    limits = Limits(max_tokens=max_tokens, ignore_eos=True)
    return StepSpec(step_id, prompt, salt, limits, sampling, priority)


class Collector:
    """Everything outcomes said, by step and choice; a lower tier that remembers what was stored."""

    def __init__(self, engine: Engine, *, answer_lookups: bool = True) -> None:
        self.engine = engine
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.finish: dict[tuple[str, int], FinishReason] = {}
        self.cached: dict[str, int] = {}
        self.prompt_tokens: dict[str, int] = {}
        self.ended: dict[str, float] = {}
        self.preemptions: dict[str, int] = {}
        self.stored: dict[bytes, StoredBlock] = {}
        self.faulty: set[str] = set()
        self.busy_s = 0.0
        self.loaded = 0
        self._answer_lookups = answer_lookups

    def take(self, outcome: StepOutcome) -> None:
        self.busy_s += outcome.busy_s
        for update in outcome.updates:
            key = (update.step_id, update.choice)
            assert key not in self.finish, f"{key} went on after its end"
            self.tokens.setdefault(key, []).extend(update.tokens)
            if update.finish is not None:
                self.finish[key] = update.finish
        for ended in outcome.ended:
            assert ended.step_id not in self.ended
            self.ended[ended.step_id] = ended.engine_s
            self.cached[ended.step_id] = ended.cached_tokens
            self.prompt_tokens[ended.step_id] = ended.prompt_tokens
            self.preemptions[ended.step_id] = ended.preemptions
            if ended.faulty:
                self.faulty.add(ended.step_id)
        for block in outcome.stores:
            self.stored[block.key] = StoredBlock(
                block.key, block.parent, block.tokens, memoryview(bytes(block.payload))
            )
        for lookup in outcome.lookups if self._answer_lookups else ():
            found = []
            for name in lookup.keys:
                if name not in self.stored:
                    break
                held = self.stored[name]
                found.append(FetchedBlock(held.tokens, bytes(held.payload)))
            self.loaded += len(found)
            self.engine.fetched(lookup.seq_id, found)

    def run(self, limit: int = 10_000) -> None:
        """Step until nothing is left to do; the books are checked after every step."""
        for _ in range(limit):
            outcome = self.engine.step(go_on)
            self.engine.batcher.check_integrity()
            if outcome is None:
                return
            self.take(outcome)
        raise AssertionError(f"not done after {limit} steps")

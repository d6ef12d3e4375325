"""Herd in this process: the engine as the model server wires it, without thread, gRPC or tiers."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from libs.demo.cache import cache_dir
from libs.hashing import BLOCK_TOKENS
from libs.models.resolve import resolve_model
from services.modelserver.config import ModelServerConfig
from services.modelserver.herd.core.batcher import Batcher, BatcherConfig
from services.modelserver.herd.core.plan import Chunk
from services.modelserver.herd.core.sequence import Limits
from services.modelserver.herd.engine.engine import Engine
from services.modelserver.herd.engine.forward import go_on
from services.modelserver.herd.engine.kv_cache import KvCache
from services.modelserver.herd.engine.native_pass import NativePass
from services.modelserver.herd.engine.precision import Precision, kv_dtype
from services.modelserver.herd.engine.runner import Model, Runner
from services.modelserver.herd.engine.sampled import RowSampling, Sampled
from services.modelserver.herd.engine.sampling_params import SamplingParams
from services.modelserver.herd.engine.step import StepOutcome, StepSpec
from services.modelserver.herd.models.config import ModelConfig
from services.modelserver.herd.models.loader import decoder_of, make_pass
from services.modelserver.herd.models.source import check_complete, open_source

MAX_BATCH_TOKENS = ModelServerConfig().max_batch_tokens
MAX_SEQS = ModelServerConfig().max_seqs
GREEDY = SamplingParams(temperature=0.0)
_SALT = b"bench".ljust(16, b"\0")
_NAMESPACE = b"bench".ljust(16, b"\1")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in one precision, KV as the model server has it then."""

    config: ModelConfig
    model: Model
    kv_dtype: torch.dtype


def load(
    name: str, precisions: Sequence[Precision], threads: int, say: Callable[[str], None]
) -> dict[str, Loaded]:
    """`name` as after `--model`, read once and packed in each precision; takes seconds.

    `threads` becomes torch's thread count for this process.
    """
    torch.set_num_threads(threads)
    started = time.perf_counter()
    source = open_source(resolve_model(name, cache_dir()))
    check_complete(source)
    fetch = functools.cache(lambda tensor: source.tensors[tensor].load())
    loaded = {}
    for precision in precisions:
        say(f"packing {name} in {precision}")
        model = make_pass(decoder_of(source.config, fetch), precision, threads)
        loaded[precision] = Loaded(source.config, model, kv_dtype(precision))
    say(f"loaded in {time.perf_counter() - started:.1f} s")
    return {str(precision): each for precision, each in loaded.items()}


class SkippingRunner:
    """The real runner, or, while `skipping`, one that feeds nothing and samples token 1.

    Decoding costs the same whatever the keys and values are, so a context for it can be set up
    without computing it.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.skipping = False

    def step(
        self,
        chunks: tuple[Chunk, ...],
        sampling: list[RowSampling],
        checkpoint: Callable[[], None],
    ) -> Sampled:
        if not self.skipping:
            return self._runner.step(chunks, sampling, checkpoint)
        return Sampled([1] * len(sampling), [None] * len(sampling))


class Herd:
    """An engine with a pool of `tokens` tokens, driven by hand."""

    def __init__(self, loaded: Loaded, tokens: int) -> None:
        blocks = -(-tokens // BLOCK_TOKENS) + MAX_SEQS
        kv = KvCache(blocks, loaded.config, loaded.kv_dtype)
        self.config = loaded.config
        self.kv_itemsize = loaded.kv_dtype.itemsize
        self._model = loaded.model
        self.runner = SkippingRunner(Runner(loaded.model, kv))
        batcher = Batcher(
            BatcherConfig(num_blocks=blocks, max_batch_tokens=MAX_BATCH_TOKENS, max_seqs=MAX_SEQS)
        )
        self.engine = Engine(
            batcher, self.runner, kv, _NAMESPACE, now=time.perf_counter, store_evicted=False
        )

    def add(self, step_id: str, prompt: Sequence[int], answer: int) -> None:
        """Queue a greedy step that gives exactly `answer` tokens."""
        limits = Limits(max_tokens=answer, ignore_eos=True)
        self.engine.add(StepSpec(step_id, prompt, _SALT, limits, (GREEDY,)))

    def seconds(self) -> dict[str, float]:
        """Of the model's passes so far, by part; nothing where torch's operators serve."""
        return self._model.seconds() if isinstance(self._model, NativePass) else {}

    def step(self) -> StepOutcome:
        """One engine step; RuntimeError when there was nothing to do."""
        outcome = self.engine.step(go_on)
        if outcome is None:
            raise RuntimeError("the engine has nothing to do")
        return outcome

    def finish(self) -> list[StepOutcome]:
        """Step until nothing is left."""
        outcomes = []
        while self.engine.has_work:
            outcomes.append(self.step())
        return outcomes

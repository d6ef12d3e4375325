"""Small random models, the reference's greedy tokens, and a driver for chunked sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from services.modelserver.herd.engine.forward import build_batch
from services.modelserver.herd.engine.kv_cache import KvCache
from services.modelserver.herd.engine.native_pass import NativePass
from services.modelserver.herd.engine.precision import kv_dtype
from services.modelserver.herd.engine.torch_pass import TorchPass
from services.modelserver.herd.models.loader import load_model

# A difference from the reference counts unless its two best logits are this near.
NEAR_TIE = 1e-4
VOCAB = 211


TINY: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def tiny_llama(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    """Hugging Face's own model with random weights, sharp enough that greedy output varies."""
    torch.manual_seed(seed)
    model: LlamaForCausalLM = LlamaForCausalLM(LlamaConfig(**(TINY | changes)))
    model.eval()
    return model


FAMILIES: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "llama": (LlamaConfig, {}),
    "mistral": (MistralConfig, {"sliding_window": None}),
    "mistral with a window": (MistralConfig, {"sliding_window": 24}),
    "qwen2": (Qwen2Config, {}),
    "qwen2, upper layers with a window": (
        Qwen2Config,
        {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 2},
    ),
    "qwen3": (Qwen3Config, {"hidden_size": 56}),
    "gemma3": (
        Gemma3TextConfig,
        {"sliding_window": 24, "query_pre_attn_scalar": 40, "num_hidden_layers": 7},
    ),
    "gemma3 with a stretched global rope": (
        Gemma3TextConfig,
        {
            "sliding_window": 24,
            "num_hidden_layers": 7,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
}
"""Hugging Face's own models of each family, by what is special of it."""


def tiny_of(family: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """As `tiny_llama`, of a family; its norms and biases are random too."""
    kind, special = FAMILIES[family]
    torch.manual_seed(seed)
    config = kind(**(TINY | special | changes))
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.2)
            if "gemma3" in family and "layernorm" in name and "post" in name:
                parameter.add_(10.0)  # beside Gemma's scaled embeddings nothing else would count
    return model.float().eval()


def save_tiny(folder: Path, seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    """A tiny model, also stored in ``folder`` as safetensors."""
    reference = tiny_llama(seed, **changes)
    reference.save_pretrained(folder)
    return reference


def save_tiny_nan(folder: Path, token: int) -> LlamaForCausalLM:
    """A tiny model that fails on prompts with ``token``: its embedding is no number."""
    reference = tiny_llama(tie_word_embeddings=False)
    with torch.no_grad():
        reference.model.embed_tokens.weight[token] = float("nan")
    reference.save_pretrained(folder)
    return reference


def load_tiny(
    folder: Path, precision: str = "float32", *, native: bool = True
) -> NativePass | TorchPass:
    model = load_model(folder, precision, native=native).model
    assert isinstance(model, NativePass if native else TorchPass), "g++ is part of the test machine"
    return model


def prompt_of(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(3, VOCAB, (length,), generator=generator).tolist()


@torch.inference_mode()
def reference_logits(reference: PreTrainedModel, tokens: Sequence[int]) -> torch.Tensor:
    """[len(tokens), vocab] float32."""
    logits: torch.Tensor = reference(torch.tensor([list(tokens)])).logits[0]
    return logits.float()


@torch.inference_mode()
def reference_greedy(
    reference: PreTrainedModel, prompt: Sequence[int], count: int
) -> tuple[list[int], list[float]]:
    """The tokens, and at each the gap between the two best logits."""
    tokens, gaps = list(prompt), []
    for _ in range(count):
        logits = reference(torch.tensor([tokens]), logits_to_keep=1).logits
        best = logits[0, -1].float().topk(2)
        tokens.append(int(best.indices[0]))
        gaps.append(float(best.values[0] - best.values[1]))
    return tokens[len(prompt) :], gaps


def assert_greedy_equal(ours: Sequence[int], theirs: Sequence[int], gaps: Sequence[float]) -> None:
    """Equal token for token, up to a near tie of the reference, which is printed."""
    assert len(ours) == len(theirs)
    for at, (mine, wanted, gap) in enumerate(zip(ours, theirs, gaps, strict=True)):
        if mine == wanted:
            continue
        assert gap < NEAR_TIE, f"token {at} is {mine}, the reference says {wanted} by {gap:.2g}"
        print(f"exempt: token {at} is {mine} for {wanted}, the reference's gap is {gap:.2g}")
        return


@dataclass
class TokenChunk:
    """A chunk as the batcher would plan it."""

    tokens: Sequence[int]
    start: int
    block_table: Sequence[int]
    sample: bool


@dataclass
class Driven:
    """One sequence: its tokens, blocks, and how many tokens have their KV in the pool."""

    tokens: list[int]
    block_table: list[int]
    done: int = 0

    def chunk(self, count: int, *, sample: bool | None = None) -> TokenChunk:
        """The next ``count`` tokens; samples at the end of the known tokens, unless told."""
        start, self.done = self.done, self.done + count
        at_end = self.done == len(self.tokens)
        fed = self.tokens[start : self.done]
        return TokenChunk(fed, start, self.block_table, at_end if sample is None else sample)


@dataclass
class Driver:
    """Feeds sequences to a model chunk by chunk, over scattered blocks of one pool."""

    model: NativePass | TorchPass
    num_blocks: int = 64
    kv: KvCache = field(init=False)

    def __post_init__(self) -> None:
        self.kv = KvCache(self.num_blocks, self.model.config, kv_dtype(self.model.precision))
        order = torch.randperm(self.num_blocks, generator=torch.Generator().manual_seed(7))
        self._free: list[int] = order.tolist()

    def sequence(self, prompt: Sequence[int], room: int = 0) -> Driven:
        """A sequence with blocks for its prompt and ``room`` more tokens."""
        blocks = -(-(len(prompt) + room) // 32)
        taken, self._free = self._free[:blocks], self._free[blocks:]
        assert len(taken) == blocks, "the driver's pool is too small for this test"
        return Driven(list(prompt), taken)

    def forward(self, chunks: Sequence[TokenChunk]) -> torch.Tensor:
        return self.model.forward(build_batch(chunks), self.kv).logits

    def greedy(self, sequence: Driven, count: int, chunk: int = 10_000) -> list[int]:
        """Prefill in chunks of ``chunk``, then decode alone."""
        produced: list[int] = []
        while len(produced) < count:
            left = len(sequence.tokens) - sequence.done
            logits = self.forward([sequence.chunk(min(chunk, left))])
            if len(logits):
                produced.append(int(logits[0].argmax()))
                sequence.tokens.append(produced[-1])
        return produced

"""How far float16 and int8 weights are from float32, on real agent prompts.

float32 continues each prompt greedily; every precision then reads prompt and continuation in one
pass (teacher-forced), so that one early difference does not count for all that follow. At each
position of the continuation: is the most likely token the same, and KL(float32 || precision), nats.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bench.lib.herd import Herd, Loaded, load
from bench.lib.machine import cores
from bench.lib.prompts import RealPrompt, real_prompts
from bench.lib.report import Bench, Target, arguments
from bench.lib.stats import rounded
from libs.hashing import BLOCK_TOKENS
from services.modelserver.herd.core.plan import Chunk
from services.modelserver.herd.engine.forward import build_batch
from services.modelserver.herd.engine.kv_cache import KvCache
from services.modelserver.herd.engine.precision import PRECISIONS

REFERENCE = "float32"
NEW_TOKENS = 32
TOGETHER = 16
QUICK_PROMPTS, QUICK_LONGEST = 10, 120
GOALS = {
    "float16": (">= 0.995", "<= 0.0001"),
    "int8": (">= 0.95", "<= 0.01"),
}
NEAR_TIE = 1e-4
"""Two best logits this near count as one: the reference itself may choose either."""


@dataclass(frozen=True, slots=True)
class Distance:
    """One prompt's continuation: booleans and nats for each position."""

    agrees: list[bool]
    near_tie: list[bool]
    kl: list[float]


def main() -> int:
    options = _options()
    bench = Bench("precision", options)
    prompts = real_prompts(options.model)
    if bench.quick:
        prompts = [p for p in prompts if len(p.tokens) <= QUICK_LONGEST][:QUICK_PROMPTS]
    models = load(options.model, PRECISIONS, options.threads, bench.say)
    answers = _continuations(bench, models[REFERENCE], prompts)
    found = _distances(bench, models, prompts, answers)
    figures: dict[str, Any] = {name: summary(of) for name, of in found.items()}
    _show(bench, figures)
    figures["prompts"] = len(prompts)
    bench.finish(figures, _targets(figures))
    return 0


def _options() -> argparse.Namespace:
    parser = arguments("precision", "Agreement of float16 and int8 weights with float32.")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=cores())
    return parser.parse_args()


def _continuations(
    bench: Bench, reference: Loaded, prompts: Sequence[RealPrompt]
) -> list[tuple[int, ...]]:
    """NEW_TOKENS greedy tokens after each prompt, in the order of the prompts."""
    answers: dict[str, list[int]] = {prompt.id: [] for prompt in prompts}
    for at in range(0, len(prompts), TOGETHER):
        group = prompts[at : at + TOGETHER]
        bench.say(f"float32 continues prompts {at + 1} to {at + len(group)} of {len(prompts)}")
        herd = Herd(reference, sum(len(p.tokens) + NEW_TOKENS + BLOCK_TOKENS for p in group))
        for prompt in group:
            herd.add(prompt.id, prompt.tokens, NEW_TOKENS)
        for outcome in herd.finish():
            for update in outcome.updates:
                answers[update.step_id] += update.tokens
    return [tuple(answers[prompt.id]) for prompt in prompts]


def _distances(
    bench: Bench,
    models: dict[str, Loaded],
    prompts: Sequence[RealPrompt],
    answers: Sequence[tuple[int, ...]],
) -> dict[str, list[Distance]]:
    """Of each precision but the reference, prompt by prompt."""
    found: dict[str, list[Distance]] = {name: [] for name in models if name != REFERENCE}
    for at, (prompt, answer) in enumerate(zip(prompts, answers, strict=True), start=1):
        bench.say(f"comparing prompt {at}/{len(prompts)} ({len(prompt.tokens)} tokens)")
        truth = _logits(models[REFERENCE], prompt.tokens, answer)
        for name, of in found.items():
            of.append(distance(truth, _logits(models[name], prompt.tokens, answer)))
    return found


def _logits(loaded: Loaded, prompt: tuple[int, ...], answer: tuple[int, ...]) -> torch.Tensor:
    """float32 [len(answer), vocab]: what each token of the answer was chosen from."""
    tokens = prompt + answer[:-1]
    blocks = -(-len(tokens) // BLOCK_TOKENS)
    chunk = Chunk("s", 0, len(tokens), tuple(range(blocks)), tokens, sample=True)
    rows = torch.arange(len(prompt) - 1, len(tokens))
    batch = dataclasses.replace(build_batch([chunk]), sample_rows=rows)
    return loaded.model.forward(batch, KvCache(blocks, loaded.config, loaded.kv_dtype)).logits


def distance(truth: torch.Tensor, other: torch.Tensor) -> Distance:
    """Of logits [positions, vocab] from those of the reference."""
    best = truth.topk(2, dim=-1)
    expected = truth.double().log_softmax(-1)
    kl = (expected.exp() * (expected - other.double().log_softmax(-1))).sum(-1)
    return Distance(
        agrees=(other.argmax(-1) == best.indices[:, 0]).tolist(),
        near_tie=(best.values[:, 0] - best.values[:, 1] < NEAR_TIE).tolist(),
        # Rounding may leave a divergence of nothing a hair below it.
        kl=kl.clamp_min(0).tolist(),
    )


def summary(distances: Sequence[Distance]) -> dict[str, Any]:
    """Over all positions of all prompts; near-ties count as agreement and are counted."""
    agrees = [
        same or tie for of in distances for same, tie in zip(of.agrees, of.near_tie, strict=True)
    ]
    excused = sum(
        tie and not same
        for of in distances
        for same, tie in zip(of.agrees, of.near_tie, strict=True)
    )
    kl = [value for of in distances for value in of.kl]
    whole = [
        all(same or tie for same, tie in zip(of.agrees, of.near_tie, strict=True))
        for of in distances
    ]
    return {
        "positions": len(kl),
        "agreement": rounded(sum(agrees) / len(agrees)),
        "near_ties_excused": excused,
        "whole_answers": rounded(sum(whole) / len(whole)),
        "kl_mean": rounded(sum(kl) / len(kl)),
        "kl_max": rounded(max(kl)),
    }


def _show(bench: Bench, figures: dict[str, Any]) -> None:
    columns = ("agreement", "whole_answers", "kl_mean", "kl_max", "positions")
    rows = [[name, *(f"{of[column]:g}" for column in columns)] for name, of in figures.items()]
    bench.table("distance from float32", ("weights", *columns), rows)


def _targets(figures: dict[str, Any]) -> list[Target]:
    return [
        target
        for name, (agreement, kl) in GOALS.items()
        for target in (
            Target(f"{name}: greedy agreement", figures[name]["agreement"], agreement),
            Target(f"{name}: mean KL, nats", figures[name]["kl_mean"], kl),
        )
    ]


if __name__ == "__main__":
    sys.exit(main())

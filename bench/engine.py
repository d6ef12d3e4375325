"""Herd alone, in this process: prefill, decode and an agent-like mix, in every precision.

What is compared is interleaved (float32, float16, int8, float32, ...), with the machine's read
bandwidth and matrix-product rate measured in the same rounds. Efficiency is the time these limits
would allow over the time taken.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.lib.agents import AgentLoad, AgentShape
from bench.lib.breakdown import TOTAL, profile
from bench.lib.clocks import CLOCKS, Clock
from bench.lib.cost import Work, decode_work, prefill_work
from bench.lib.herd import MAX_BATCH_TOKENS, Herd, Loaded, load
from bench.lib.lanes import Lanes, Timed
from bench.lib.machine import cores
from bench.lib.report import Bench, Target, arguments
from bench.lib.stats import interleave, rounded, spread
from services.modelserver.herd.engine.precision import PRECISIONS

PREFILL_TOKENS = 600
CONTEXT = 256
GOALS = {"decode b16": ">= 0.5", "prefill": ">= 0.7"}


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is done. `decode_steps` are timed as one."""

    rounds: int
    batches: tuple[int, ...]
    decode_steps: int
    mix: AgentShape
    mix_rounds: int


FULL = Scale(
    rounds=7,
    batches=(1, 8, 16, 32),
    decode_steps=8,
    mix=AgentShape(traces=8, steps=4, head=400, task=150, result=120, answer=48),
    mix_rounds=3,
)
QUICK = Scale(
    rounds=2,
    batches=(1, 8, 16, 32),
    decode_steps=2,
    mix=AgentShape(traces=4, steps=2, head=200, task=60, result=60, answer=16),
    mix_rounds=1,
)


def main() -> int:
    options = _options()
    bench = Bench("engine", options)
    scale = QUICK if bench.quick else FULL
    models = load(options.model, options.precision, options.threads, bench.say)
    lanes = Lanes(models, Clock(options.clock), bench.say)
    figures: dict[str, Any] = {"clock": options.clock, "threads": options.threads}
    targets: list[Target] = []
    if options.profile:
        figures |= {"clock": "wall", "profile": _profile(bench, models)}
    else:
        timed = {"prefill": _prefill(lanes, scale)}
        timed |= {f"decode b{batch}": _decode(lanes, batch, scale) for batch in scale.batches}
        figures |= {name: _figures(name, of) for name, of in timed.items()}
        figures["mix"] = _mix(lanes, scale)
        figures["limits"] = {name: spread(v).as_json() for name, v in lanes.limits.items()}
        _show(bench, timed, figures)
        targets += _targets(timed)
    bench.finish(figures, targets)
    return 0


def _options() -> argparse.Namespace:
    parser = arguments("engine", "Herd alone: prefill, decode and an agent-like mix.")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=None, help="default: all cores, or 1 (cpu)")
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="cpu: for a shared machine, one thread"
    )
    parser.add_argument(
        "--precision", choices=PRECISIONS, nargs="+", default=PRECISIONS, metavar="P"
    )
    parser.add_argument("--profile", action="store_true", help="where the time goes, instead")
    options = parser.parse_args()
    if options.threads is None:
        options.threads = 1 if options.clock == "cpu" else cores()
    if options.threads != 1 and options.clock == "cpu":
        parser.error("--clock cpu needs --threads 1")
    return options


# ---- what is measured


def _prefill(lanes: Lanes, scale: Scale) -> dict[str, Timed]:
    prompts = _Prompts()
    herds = _herds(lanes.models, scale.rounds * (PREFILL_TOKENS + 64))
    runs = {name: _prefill_run(herd, prompts) for name, herd in herds.items()}
    works = {
        name: prefill_work(loaded.config, name, PREFILL_TOKENS, MAX_BATCH_TOKENS)
        for name, loaded in lanes.models.items()
    }
    return lanes.compare("prefill", runs, works, scale.rounds)


def _prefill_run(herd: Herd, prompts: _Prompts) -> Callable[[], object]:
    def run() -> None:
        herd.add(prompts.name(), prompts.tokens(PREFILL_TOKENS, herd.config.vocab), 1)
        herd.finish()

    return run


def _decode(lanes: Lanes, batch: int, scale: Scale) -> dict[str, Timed]:
    steps = scale.rounds * scale.decode_steps + 1
    # The timed steps lie around CONTEXT.
    prompt = CONTEXT - steps // 2
    herds = _herds(lanes.models, batch * (prompt + steps + 64))
    runs = {}
    works: dict[str, Work] = {}
    for name, herd in herds.items():
        _fill(herd, batch, prompt, steps + 8)
        runs[name] = _steps(herd, scale.decode_steps)
        one = decode_work(herd.config, name, batch, CONTEXT, herd.kv_itemsize)
        works[name] = Work(one.read_bytes * scale.decode_steps, one.flops * scale.decode_steps)
    timed = lanes.compare(f"decode at {batch}", runs, works, scale.rounds)
    return {
        name: Timed(
            [took / scale.decode_steps for took in of.seconds],
            [floor / scale.decode_steps for floor in of.floors],
        )
        for name, of in timed.items()
    }


def _fill(herd: Herd, batch: int, prompt: int, answer: int) -> None:
    """`batch` sequences that lack one token each, then one real step.

    About one enters in each step and those before it decode meanwhile: prompts grow by as much,
    so that all come to about `prompt` tokens and to `answer` more.
    """
    prompts = _Prompts()
    herd.runner.skipping = True
    for behind in reversed(range(batch)):
        tokens = prompts.tokens(prompt - behind, herd.config.vocab)
        herd.add(prompts.name(), tokens, 2 * behind + answer)
    sampled = 0
    while sampled < batch:
        sampled = herd.step().sampled_tokens
    herd.runner.skipping = False
    herd.step()


def _steps(herd: Herd, count: int) -> Callable[[], object]:
    return lambda: [herd.step() for _ in range(count)]


def _mix(lanes: Lanes, scale: Scale) -> dict[str, Any]:
    """Wall time of a closed loop of traces: chunked prefill, decode and prefix hits together."""
    shape = scale.mix
    cached: dict[str, int] = {}

    def run(name: str, loaded: Loaded) -> Callable[[], object]:
        def once() -> None:
            server = _Server(Herd(loaded, shape.traces * (shape.longest + 64)))
            AgentLoad(shape, loaded.config.vocab, seed=7).run(server)
            cached[name] = server.cached

        return once

    runs = {name: run(name, loaded) for name, loaded in lanes.models.items()}
    nothing = {name: Work(0, 0) for name in runs}
    timed = lanes.compare("mix", runs, nothing, scale.mix_rounds)
    return {
        "shape": asdict(shape),
        **{
            name: {
                "tokens_per_s": of.rate(shape.prompt_tokens + shape.answer_tokens).as_json(),
                "answer_tokens_per_s": of.rate(shape.answer_tokens).as_json(),
                "steps_per_s": of.rate(shape.traces * shape.steps).as_json(),
                "cached_share": rounded(cached[name] / shape.prompt_tokens),
            }
            for name, of in timed.items()
        },
    }


class _Server:
    """A Herd as an agent load sees it."""

    def __init__(self, herd: Herd) -> None:
        self._herd = herd
        self.add = herd.add
        self.cached = 0

    def advance(self) -> tuple[dict[str, list[int]], list[str]]:
        outcome = self._herd.step()
        self.cached += sum(ended.cached_tokens for ended in outcome.ended)
        tokens = {update.step_id: list(update.tokens) for update in outcome.updates}
        return tokens, [ended.step_id for ended in outcome.ended]


class _Prompts:
    """Random prompts, none a prefix of another, the same ones every time."""

    def __init__(self) -> None:
        self._chance = random.Random(1)
        self._count = 0

    def name(self) -> str:
        self._count += 1
        return f"p{self._count}"

    def tokens(self, count: int, vocab: int) -> tuple[int, ...]:
        return tuple(self._chance.randrange(vocab) for _ in range(count))


def _herds(models: Mapping[str, Loaded], tokens: int) -> dict[str, Herd]:
    return {name: Herd(loaded, tokens) for name, loaded in models.items()}


# ---- where the time goes


def _profile(bench: Bench, models: Mapping[str, Loaded]) -> dict[str, Any]:
    """Milliseconds by part: a decode step at 8 and at 16, and the prefill of a prompt."""
    steps, rounds = (2, 3) if bench.quick else (4, 7)
    cases: dict[str, dict[str, Callable[[], dict[str, float]]]] = {}
    prompts = _Prompts()
    for batch in (1, 8, 16):
        runs = cases[f"decode b{batch}"] = {}
        for name, herd in _herds(models, batch * (CONTEXT + 256)).items():
            _fill(herd, batch, CONTEXT, rounds * steps + 8)
            runs[name] = _profiled(herd, _steps(herd, steps), steps)
    runs = cases["prefill"] = {}
    for name, herd in _herds(models, rounds * (PREFILL_TOKENS + 64)).items():
        runs[name] = _profiled(herd, _prefill_run(herd, prompts), 1)
    found = {
        what: {
            name: _medians(values)
            for name, values in interleave(
                runs, rounds, lambda at, name: bench.say(f"profile, round {at + 1}: {name}")
            ).items()
        }
        for what, runs in cases.items()
    }
    for what, by_precision in found.items():
        _show_profile(bench, what, by_precision)
    return found


def _profiled(herd: Herd, run: Callable[[], object], steps: int) -> Callable[[], dict[str, float]]:
    """Milliseconds a step by part."""
    return lambda: {
        part: 1000 * value / steps for part, value in profile(run, herd.seconds).items()
    }


def _medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {part: rounded(spread([each[part] for each in rounds]).median) for part in rounds[0]}


def _show_profile(bench: Bench, what: str, found: Mapping[str, Mapping[str, float]]) -> None:
    parts = list(next(iter(found.values())))
    rows = [
        [part, *(f"{of[part]:.1f}  {of[part] / of[TOTAL]:4.0%}" for of in found.values())]
        for part in parts
    ]
    bench.table(f"{what}: ms and share", ["part", *found], rows)


# ---- what is shown


def _figures(name: str, timed: Mapping[str, Timed]) -> dict[str, Any]:
    amount = _amount(name)
    return {
        precision: {
            "tokens_per_s": of.rate(amount).as_json(),
            "efficiency": of.efficiency.as_json(),
        }
        for precision, of in timed.items()
    }


def _amount(name: str) -> int:
    """Tokens of one timed run."""
    return PREFILL_TOKENS if name == "prefill" else int(name.rpartition("b")[2])


def _show(
    bench: Bench, timed: Mapping[str, Mapping[str, Timed]], figures: Mapping[str, Any]
) -> None:
    precisions = list(next(iter(timed.values())))
    rows = [
        [name, *(_cell(of[p], _amount(name)) for p in precisions)] for name, of in timed.items()
    ]
    mix = figures["mix"]
    rows.append(["mix (answers)", *(_mix_cell(mix[p]) for p in precisions)])
    title = f"tokens/s (share of the machine's limit), {figures['clock']} time, median"
    bench.table(title, ["", *precisions], rows)
    limits = figures["limits"]
    limit_rows = [["read GB/s", f"{limits['read']['median'] / 1e9:.1f}"]]
    limit_rows += [
        [f"product GFLOP/s, {name}", f"{of['median'] / 1e9:.0f}"]
        for name, of in limits.items()
        if name != "read"
    ]
    bench.table("limits in the same rounds", ["", "median"], limit_rows)


def _cell(timed: Timed, amount: int) -> str:
    return f"{timed.rate(amount).median:.1f} ({timed.efficiency.median:.0%})"


def _mix_cell(figures: Mapping[str, Any]) -> str:
    return f"{figures['answer_tokens_per_s']['median']:.1f}"


def _targets(timed: Mapping[str, Mapping[str, Timed]]) -> Sequence[Target]:
    return [
        Target(f"{what} {precision}: share of the limit", of.efficiency.median, goal)
        for what, goal in GOALS.items()
        for precision, of in timed[what].items()
    ]


if __name__ == "__main__":
    sys.exit(main())

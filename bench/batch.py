"""The main job: a batch of real agent steps through the whole of Impala, cold and then warm.

Each round starts `impala up` for one precision, sends the batch over HTTP, sends the same batch
again (its prompts are in the prefix cache now), and stops. Precisions take turns.
"""

from __future__ import annotations

import argparse
import functools
import json
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.lib.batch_api import BatchApi
from bench.lib.machine import ROOT, cores
from bench.lib.report import Bench, Target, arguments
from bench.lib.stack import Stack
from bench.lib.stats import interleave, spread

INPUT = ROOT / "examples" / "agent_steps.jsonl"
ENDPOINT = "/v1/chat/completions"
WITHIN_S = 1800.0
QUICK_ANSWER = 16
ENGINE = "modelserver"

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class StackRun:
    """One start: its two batches' figures, and each service's peak memory in bytes."""

    start_s: float
    cold: Figures
    warm: Figures
    peak_rss: dict[str, int]


def main() -> int:
    options = _options()
    # As an exit: the stack that was started is stopped on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    bench = Bench("batch", options)
    with tempfile.TemporaryDirectory(prefix="impala-bench-") as folder:
        path = Path(folder) / "input.jsonl"
        lines = write_input(options.input, path, options.model, quick=bench.quick)
        bench.say(f"{lines} lines of {options.input.name}")
        found = interleave(
            {p: functools.partial(_start_and_run, bench, options, p, path)
             for p in options.precision},
            options.rounds or (1 if bench.quick else 3),
            lambda at, name: bench.say(f"round {at + 1}: starting with {name}"),
        )  # fmt: skip
    figures: dict[str, Any] = {"lines": lines, "threads": options.threads}
    figures |= {precision: _figures(runs) for precision, runs in found.items()}
    _show(bench, options.precision, figures)
    bench.finish(figures, _targets(options.precision, figures))
    return 0


def _options() -> argparse.Namespace:
    parser = arguments("batch", "A batch of real agent steps through all services.")
    parser.add_argument("--input", type=Path, default=INPUT, help="a batch file")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--precision", nargs="+", default=["float32", "float16"], metavar="P")
    parser.add_argument("--threads", type=int, default=cores(), help="of the model server")
    parser.add_argument("--rounds", type=int, help="default: 3, quick: 1")
    return parser.parse_args()


def write_input(source: Path, target: Path, model: str, *, quick: bool) -> int:
    """The lines for `model`, and how many; quick: the first trace's alone, with short answers."""
    records = [json.loads(line) for line in source.read_text("utf-8").splitlines() if line]
    if quick:
        first = _trace(records[0])
        records = [record for record in records if _trace(record) == first]
    for record in records:
        record["body"]["model"] = model
        if quick:
            record["body"]["max_tokens"] = QUICK_ANSWER
            record["body"].pop("max_completion_tokens", None)
    target.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return len(records)


def _trace(record: Mapping[str, Any]) -> str:
    """Ids are the trace's and the step's: `trace#step`."""
    return str(record["custom_id"]).rpartition("#")[0]


# ---- what is measured


def _start_and_run(
    bench: Bench, options: argparse.Namespace, precision: str, path: Path
) -> StackRun:
    flags = ("--model", options.model, "--precision", precision)
    with Stack(*flags, "--threads", str(options.threads)) as stack, BatchApi(stack.url) as api:
        bench.say(f"ready after {stack.start_s:.1f} s")
        file_id = api.upload(path)
        cold = _run_once(stack, api, file_id)
        bench.say(f"cold: {cold['wall_s']:.1f} s")
        warm = _run_once(stack, api, file_id)
        bench.say(f"warm: {warm['wall_s']:.1f} s")
        if stack.restarts():
            bench.say("a service was restarted: this round is no measurement")
        peak = {name: watched.peak_rss for name, watched in stack.sampler.seen.items()}
        return StackRun(stack.start_s, cold, warm, peak)


def _run_once(stack: Stack, api: BatchApi, file_id: str) -> Figures:
    before = stack.sampler.cpu()
    batch, wall = api.run(file_id, ENDPOINT, WITHIN_S)
    after = stack.sampler.cpu()
    used = {name: after[name] - before.get(name, 0.0) for name in after}
    return batch_figures(batch, api.ledger(batch["run_id"]), wall, used)


def batch_figures(
    batch: Mapping[str, Any], ledger: Mapping[str, Any], wall: float, cpu: Mapping[str, float]
) -> Figures:
    """Figures of one batch. wall: seconds; cpu: seconds of each service meanwhile."""
    counts, usage = batch["request_counts"], batch["usage"]
    cached = usage["input_tokens_details"]["cached_tokens"]
    engines = sum(used for name, used in cpu.items() if name.startswith(ENGINE))
    services = sum(cpu.values()) - engines
    return {
        "wall_s": wall,
        "answered_share": counts["completed"] / counts["total"] if counts["total"] else 0.0,
        "lines_per_s": counts["completed"] / wall,
        "prompt_tokens_per_s": usage["input_tokens"] / wall,
        "cached_tokens_per_s": cached / wall,
        "completion_tokens_per_s": usage["output_tokens"] / wall,
        "cached_share": cached / max(1, usage["input_tokens"]),
        "tasks_per_dollar": batch["tasks_per_dollar"] or 0.0,
        "engine_busy_share": ledger["busy_engine_s"] / wall,
        "engine_cpu_s": engines,
        "services_cpu_s": services,
        "services_cpu_share": services / max(1e-9, services + engines),
        **{f"cpu_s {name}": used for name, used in sorted(cpu.items())},
    }


def _figures(runs: Sequence[StackRun]) -> dict[str, Any]:
    """Medians over the rounds."""
    services = sorted({name for run in runs for name in run.peak_rss})
    return {
        "start_s": spread([run.start_s for run in runs]).as_json(),
        "cold": _medians([run.cold for run in runs]),
        "warm": _medians([run.warm for run in runs]),
        "peak_rss_mib": {
            name: round(max(run.peak_rss.get(name, 0) for run in runs) / 2**20) for name in services
        },
    }


def _medians(rounds: Sequence[Figures]) -> dict[str, Any]:
    return {name: spread([each[name] for each in rounds]).as_json() for name in rounds[0]}


# ---- what is shown


def _show(bench: Bench, precisions: Sequence[str], figures: Mapping[str, Any]) -> None:
    columns = [(p, heat) for p in precisions for heat in ("cold", "warm")]
    names = [n for n in figures[precisions[0]]["cold"] if not n.startswith("cpu_s ")]
    rows = [
        [name, *(f"{figures[p][heat][name]['median']:.3g}" for p, heat in columns)]
        for name in names
    ]
    title = f"{figures['lines']} lines, median"
    bench.table(title, ["", *(f"{p} {heat}" for p, heat in columns)], rows)
    services = list(figures[precisions[0]]["peak_rss_mib"])
    memory = [
        [
            name,
            *(str(figures[p]["peak_rss_mib"].get(name, "-")) for p in precisions),
            *(f"{figures[p]['cold'][f'cpu_s {name}']['median']:.2f}" for p in precisions),
        ]
        for name in services
    ]
    head = [*(f"{p} peak MiB" for p in precisions), *(f"{p} cold CPU s" for p in precisions)]
    bench.table("services", ["", *head], memory)
    starts = ", ".join(f"{p} {figures[p]['start_s']['median']:.1f} s" for p in precisions)
    bench.say(f"start to readiness: {starts}")


def _targets(precisions: Sequence[str], figures: Mapping[str, Any]) -> list[Target]:
    def median(precision: str, heat: str, name: str) -> float:
        return float(figures[precision][heat][name]["median"])

    return [
        target
        for p in precisions
        for target in (
            Target(f"{p}: answered", median(p, "cold", "answered_share"), ">= 1"),
            Target(f"{p}: engine busy, cold", median(p, "cold", "engine_busy_share"), ">= 0.9"),
            Target(
                f"{p}: CPU of the other services, cold",
                median(p, "cold", "services_cpu_share"),
                "<= 0.1",
            ),
            Target(f"{p}: prompt cached, warm", median(p, "warm", "cached_share"), ">= 0.95"),
        )
    ]


if __name__ == "__main__":
    sys.exit(main())

"""A big batch through the machinery: lines per second, and what router and scheduler hold.

A real cluster of processes with a model server that computes nothing: all the time is that of the
way from a line of the input file to one of the output file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.lib.batch_api import BatchApi
from bench.lib.processes import Sampler
from bench.lib.report import Bench, Target, arguments
from services.router.tests.tiny_model import make_tiny_model
from tests.robustness.cluster import MODEL, Cluster, Shape

ENDPOINT = "/v1/chat/completions"
WITHIN_S = 1800.0
QUICK_LINES = 5_000
MIB = 2**20


def main() -> int:
    options = _options()
    bench = Bench("size", options)
    lines = min(options.lines, QUICK_LINES) if bench.quick else options.lines
    figures = asyncio.run(_run(bench, options, lines))
    _show(bench, figures)
    bench.finish(figures, _targets(figures))
    return 0


def _options() -> argparse.Namespace:
    parser = arguments("size", "A big batch against a scripted engine.")
    parser.add_argument("--lines", type=int, default=50_000)
    parser.add_argument("--prompt-chars", type=int, default=400, help="of each line")
    parser.add_argument("--file-mib", type=int, default=0, help="pad the lines to a file so large")
    parser.add_argument("--line-mib", type=int, default=0, help="pad one line in the middle")
    parser.add_argument("--tokens", type=int, default=1, help="sampled for each line")
    parser.add_argument("--routers", type=int, default=1)
    parser.add_argument("--modelservers", type=int, default=1)
    return parser.parse_args()


async def _run(bench: Bench, options: argparse.Namespace, lines: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="impala-size-") as folder:
        model, file = Path(folder) / "model", Path(folder) / "input.jsonl"
        make_tiny_model(model)
        with file.open("w") as out:
            out.writelines(_padded(options, lines))
        shape = Shape(
            routers=options.routers,
            schedulers=1,
            modelservers=options.modelservers,
            step_s=0.0,
            model=str(model),
            kv_bytes="64MiB",
            max_seqs=64,
            proxied=False,
        )
        async with Cluster(shape) as cluster:
            bench.say(f"{lines} lines, {file.stat().st_size / MIB:.0f} MiB")
            url = next(iter(cluster.http.values()))
            with Sampler(cluster.pids) as sampler:
                return await asyncio.to_thread(_one, url, file, sampler)


def requests(lines: int, chars: int, tokens: int) -> Iterator[str]:
    """The lines of the file: a head that they share, and a tail of their own."""
    head = ("You fix the failing test. " * (chars // 26 + 1))[: chars - 16]
    for at in range(lines):
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": f"{head}{at:016d}"}],
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        line = {"custom_id": f"line-{at}", "method": "POST", "url": ENDPOINT, "body": body}
        yield json.dumps(line) + "\n"


def _padded(options: argparse.Namespace, lines: int) -> Iterator[str]:
    """Blanks between two fields mean nothing in JSON, and are read as anything else is."""
    for at, line in enumerate(requests(lines, options.prompt_chars, options.tokens)):
        large = options.line_mib * MIB if at == lines // 2 else 0
        blanks = max(large, options.file_mib * MIB // lines) - len(line)
        yield line[0] + " " * blanks + line[1:]


def _one(url: str, file: Path, sampler: Sampler) -> dict[str, Any]:
    with BatchApi(url) as api:
        started = time.perf_counter()
        file_id = api.upload(file)
        uploaded = time.perf_counter()
        before = sampler.cpu()
        batch, wall = api.run(file_id, ENDPOINT, WITHIN_S)
        after = sampler.cpu()
        ledger = api.ledger(batch["run_id"])
    counts = batch["request_counts"]
    return {
        "lines": counts["total"],
        "completed": counts["completed"],
        "upload_s": uploaded - started,
        "wall_s": wall,
        "lines_per_s": counts["completed"] / wall,
        "phases_s": {
            "validating": batch["in_progress_at"] - batch["created_at"],
            "running": batch["finalizing_at"] - batch["in_progress_at"],
            "finalizing": batch["completed_at"] - batch["finalizing_at"],
        },
        "engine_busy_share": ledger["busy_engine_s"] / wall,
        "cpu_s": {name: after[name] - before.get(name, 0.0) for name in after},
        "peak_rss_mib": {name: seen.peak_rss / MIB for name, seen in sampler.seen.items()},
    }


def _show(bench: Bench, figures: dict[str, Any]) -> None:
    lines = figures["lines"]
    rows = [
        [name, f"{cpu:.1f}", f"{cpu / lines * 1e3:.3f}", f"{figures['peak_rss_mib'][name]:.0f}"]
        for name, cpu in figures["cpu_s"].items()
    ]
    bench.table("processes", ["", "CPU s", "CPU ms a line", "peak MiB"], rows)
    phases = ", ".join(f"{name} {seconds} s" for name, seconds in figures["phases_s"].items())
    bench.say(
        f"{figures['completed']} of {lines} lines in {figures['wall_s']:.1f} s: "
        f"{figures['lines_per_s']:.0f} lines/s ({phases}; upload {figures['upload_s']:.1f} s)"
    )


def _targets(figures: dict[str, Any]) -> list[Target]:
    def most(service: str) -> float:
        return max(rss for name, rss in figures["peak_rss_mib"].items() if name.startswith(service))

    return [
        Target("answered", figures["completed"] / figures["lines"], ">= 1"),
        Target("lines/s", figures["lines_per_s"], ">= 1000"),
        Target("router peak MiB", most("router"), "<= 286"),
        Target("scheduler peak MiB", most("scheduler"), "<= 286"),
    ]


if __name__ == "__main__":
    sys.exit(main())

"""Nothing lost: batches run on a real cluster while its processes are killed, paused and cut off.

Draws faults from a seed, injects them at random points of batches whose every answer is known, and
checks what clients were told against a model (tests/robustness). Half of them meet a cluster with
one etcd and a folder of objects, half one with three etcd nodes and S3. A round that breaks a rule
ends the campaign, keeps its logs, and prints the command that runs that round again.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from bench.lib.report import Bench, Target, arguments
from tests.robustness.campaign import Injection, Report, Settings
from tests.robustness.model import Broken
from tests.robustness.setups import SHAPES, make_campaign

LOST = (Broken.LOST, Broken.FAILED)
DOUBLED = (Broken.DOUBLED, Broken.CHANGED)
HUNG = (Broken.HUNG,)
BOTH = "both"
QUICK_COUNT = 8


def main() -> int:
    options = _options()
    bench = Bench("faults", options)
    count = min(options.count, QUICK_COUNT) if bench.quick else options.count
    shapes = tuple(SHAPES) if options.shape == BOTH else (options.shape,)
    report, last = Report(), ""
    complaints: dict[str, int] = {}
    for at, shape in enumerate(shapes):
        if report.violations:
            break
        wanted = (count + at) // len(shapes)
        found, complained = asyncio.run(_run(bench, options, shape, wanted))
        report, last = _joined(report, found), shape
        complaints |= {f"{shape}/{name}": times for name, times in complained.items()}
    _show(bench, report)
    for name, times in complaints.items():
        bench.say(f"{name} has {times} tracebacks or lost tasks")
    _explain(bench, options, last, report)
    figures = _figures(options, report, complaints)
    bench.finish(figures, _targets(report, count))
    return 1 if report.violations else 0


def _options() -> argparse.Namespace:
    parser = arguments("faults", "Faults in a cluster under load, checked against a model.")
    parser.add_argument("--count", type=int, default=200, help="faults at least")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--round", type=int, default=1, help="the first; each depends on the seed")
    parser.add_argument(
        "--engine",
        choices=("fake", "demo"),
        default="fake",
        help="model servers that answer by a script, or the real demo model in float32",
    )
    parser.add_argument(
        "--shape",
        choices=(*SHAPES, BOTH),
        default=BOTH,
        help="one etcd and a folder of objects, three etcd nodes and S3, or one after the other",
    )
    return parser.parse_args()


async def _run(
    bench: Bench, options: argparse.Namespace, shape: str, count: int
) -> tuple[Report, dict[str, int]]:
    settings = Settings(options.seed, first_round=options.round)
    making = make_campaign(options.engine, settings, bench.say, SHAPES[shape])
    async with making as (cluster, campaign):
        bench.say(f"{shape}: a cluster of {', '.join(cluster.members)}")
        report = await campaign.run(count)
        complaints = cluster.complaints()
        if report.violations or complaints:
            cluster.keep = True
            bench.say(f"the logs are kept: {cluster.logs}")
        return report, complaints


def _joined(one: Report, other: Report) -> Report:
    return Report(
        injections=[*one.injections, *other.injections],
        rounds=one.rounds + other.rounds,
        lines=one.lines + other.lines,
        ends=one.ends + other.ends,
        missed=one.missed + other.missed,
        undisturbed=[*one.undisturbed, *other.undisturbed],
    )


def _groups(injections: Sequence[Injection]) -> dict[tuple[str, str], list[Injection]]:
    groups: dict[tuple[str, str], list[Injection]] = {}
    for each in sorted(injections, key=lambda i: (i.fault.kind, i.fault.service)):
        groups.setdefault((str(each.fault.kind), each.fault.service), []).append(each)
    return groups


def _row(injections: Sequence[Injection]) -> dict[str, Any]:
    def broken(rules: Sequence[Broken]) -> int:
        return sum(v.rule in rules for each in injections for v in each.violations)

    known = LOST + DOUBLED + HUNG
    resumes = [each.resume_s for each in injections if each.resume_s is not None]
    return {
        "faults": len(injections),
        "lost": broken(LOST),
        "doubled": broken(DOUBLED),
        "hung": broken(HUNG),
        "other": broken([rule for rule in Broken if rule not in known]),
        "resume_median_s": round(statistics.median(resumes), 2) if resumes else None,
        "resume_worst_s": round(max(resumes), 2) if resumes else None,
    }


def _show(bench: Bench, report: Report) -> None:
    names = ("faults", "lost", "doubled", "hung", "other", "resume_median_s", "resume_worst_s")
    rows = [
        [f"{kind}: {service}", *(_text(_row(each)[name]) for name in names)]
        for (kind, service), each in _groups(report.injections).items()
    ]
    total = _row(report.injections)
    rows.append(["all", *(_text(total[name]) for name in names)])
    ends = ", ".join(f"{count} {status}" for status, count in sorted(report.ends.items()))
    title = f"{report.lines} lines in {report.rounds} rounds; batches: {ends}"
    columns = ["", *names[:5], "resume s, median", "worst"]
    bench.table(title, columns, rows)


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _explain(bench: Bench, options: argparse.Namespace, shape: str, report: Report) -> None:
    if not report.violations:
        return
    number = report.violations[0][0]
    for each in report.injections:
        if each.round == number:
            bench.say(f"round {number}: {each.fault}")
    for _, violation in report.violations[:20]:
        bench.say(f"round {number} broke a rule: {str(violation)[:1000]}")
    bench.say(
        f"again: python -m bench.faults --seed {options.seed} --round {number} --count 1 "
        f"--engine {options.engine} --shape {shape}"
    )


def _figures(
    options: argparse.Namespace, report: Report, complaints: dict[str, int]
) -> dict[str, Any]:
    groups = _groups(report.injections)
    return {
        "seed": options.seed,
        "engine": options.engine,
        "shape": options.shape,
        "rounds": report.rounds,
        "lines": report.lines,
        "batches": dict(report.ends),
        "missed": report.missed,
        "all": _row(report.injections),
        "by_kind": {f"{kind}: {service}": _row(each) for (kind, service), each in groups.items()},
        "complaints": complaints,
    }


def _targets(report: Report, count: int) -> list[Target]:
    total = _row(report.injections)
    wrong = ("lost", "doubled", "hung", "other")
    return [
        Target("faults injected", total["faults"], f">= {count}"),
        *(Target(name, total[name], "<= 0") for name in wrong),
    ]


if __name__ == "__main__":
    sys.exit(main())

"""Clusters with work whose answers are known, by the kind of engine."""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path

from libs.demo.model import DEMO
from tests.robustness.campaign import DAY, HOUR, Campaign, MakeTasks, Settings, Task
from tests.robustness.cluster import Cluster, Engine, Shape
from tests.robustness.history import Delivered
from tests.robustness.model import answers_of
from tests.robustness.work import REFUSED, Script, Work, make_work

BATCHES = 2
"""Of a round, at the same time: with the same custom_ids and other prompts."""
CANCELLED_SHARE = 0.1
EXPIRING_SHARE = 0.4
"""Of batches with the shortest window: they expire where a clock jumps."""
FAKE_LINES, FAKE_TOKENS = 24, 32
DEMO_LINES, DEMO_TOKENS = 10, 24


LOCAL = Shape(clocks=True)
"""One etcd and a folder."""
REPLICATED = Shape(clocks=True, objects="s3", etcd_nodes=3)
SHAPES: Mapping[str, Shape] = {"local": LOCAL, "replicated": REPLICATED}


@contextlib.asynccontextmanager
async def make_campaign(
    engine: Engine,
    settings: Settings,
    say: Callable[[str], None] = lambda _: None,
    shape: Shape = LOCAL,
) -> AsyncIterator[tuple[Cluster, Campaign]]:
    """A cluster that runs, and a campaign in which nothing was injected yet. shape: of all but the
    model servers."""
    with tempfile.TemporaryDirectory(prefix="impala-tokenizer-") as folder:
        if engine == "fake":
            script = Script(Path(folder) / "model")
            scripts = replace(shape, engine="fake", model=str(Path(folder) / "model"))
            async with Cluster(scripts) as cluster:
                yield cluster, Campaign(cluster, settings, scripted(script), say)
        else:
            real = replace(shape, engine="demo", modelservers=1, model=DEMO.alias)
            async with Cluster(real) as cluster:
                tasks = await undisturbed(cluster, settings)
                yield cluster, Campaign(cluster, settings, lambda _: tasks, say)


def scripted(script: Script) -> MakeTasks:
    """New batches every round, with the answers that the script gives."""

    def make(rng: random.Random) -> list[Task]:
        works = [make_work(rng, FAKE_LINES, FAKE_TOKENS) for _ in range(BATCHES)]
        cancels = [rng.random() if rng.random() < CANCELLED_SHARE else None for _ in works]
        windows = [HOUR if rng.random() < EXPIRING_SHARE else DAY for _ in works]
        return [
            Task(work, script.answers(work), cancel_at, window)
            for work, cancel_at, window in zip(works, cancels, windows, strict=True)
        ]

    return make


async def undisturbed(cluster: Cluster, settings: Settings) -> list[Task]:
    """The same batches every round, with the answers they get while nothing happens: greedy in
    float32 depends on the prompt alone."""
    rng = random.Random(settings.seed)
    works = [make_work(rng, DEMO_LINES, DEMO_TOKENS) for _ in range(BATCHES)]
    return [Task(work, await _answers(cluster, settings, work)) for work in works]


async def _answers(cluster: Cluster, settings: Settings, work: Work) -> dict[str, str | None]:
    history = await Campaign(cluster, settings, lambda _: [Task(work, {})]).round([])
    (files,) = [event for event in history.events if isinstance(event, Delivered)]
    found: dict[str, str | None] = {**answers_of(files.lines), REFUSED: None}
    assert set(found) == {*work.messages, REFUSED}, "not every line was answered"
    return found

"""All is killed when nine tenths of a large batch are recorded: none of that is done again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import psutil
import pytest

from services.router.tests.tiny_model import make_tiny_model
from tests.robustness.cluster import MODEL, Cluster, Shape
from tests.runs.api import api_of, chat_line, ids

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("runs-resume"),
]

LINES = 8000
MOST_MIB = 300


async def test_a_large_batch_goes_on_where_it_was_when_all_was_killed_at_ninety_percent(
    tmp_path: Path,
) -> None:
    make_tiny_model(tmp_path / "model")
    shape = Shape(
        routers=1,
        schedulers=1,
        modelservers=1,
        step_s=0.0,
        model=str(tmp_path / "model"),
        kv_bytes="16MiB",
        max_seqs=64,
        proxied=False,
    )
    async with Cluster(shape) as cluster, api_of(cluster.http["router-1"]) as api:
        lines = (chat_line(MODEL, f"l{at}", f"Number {at} {'x' * 100}", 1) for at in range(LINES))
        batch_id = await api.submit("".join(lines))
        await api.recorded(batch_id, LINES * 9 // 10)
        recorded = await api.results(batch_id)
        cluster.kill(cluster.members)
        batch = await api.ended(batch_id)
        assert batch["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
        output = await api.lines(batch["output_file_id"])
        results = await api.results(batch_id)
        assert len(recorded) >= LINES * 9 // 10
        # Request ids are drawn for each execution: a line that was run again would have another.
        assert results[: len(recorded)] == recorded
        assert Counter(results) == Counter(output)
        assert ids(output) == sorted(f"l{at}" for at in range(LINES))
        for name, pid in cluster.pids().items():
            if name.startswith(("router", "scheduler")):
                assert psutil.Process(pid).memory_info().rss < MOST_MIB << 20, name
        assert cluster.complaints() == {}

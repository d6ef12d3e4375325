import sys
import time
from pathlib import Path

import pytest

from bench.lib.breakdown import FUNCTIONS, REST, TOTAL, Functions, by_part, profile

HERD = Path(__file__).parents[2] / "services" / "modelserver" / "herd"


def test_time_is_summed_by_part_and_the_rest_is_named():
    functions: Functions = {
        ("/x/batcher.py", 1, "plan"): (1, 1, 0.5, 2.0, {}),
        ("/x/batcher.py", 9, "commit"): (1, 1, 0.5, 1.0, {}),
        ("/x/sampler.py", 3, "sample"): (1, 1, 0.1, 4.0, {}),
        ("/x/other.py", 3, "sample"): (1, 1, 0.1, 9.0, {}),
    }
    parts = by_part({"products": 5.0}, functions, total=15.0)
    assert parts == {"products": 5.0, "planning": 3.0, "sampler": 4.0, REST: 3.0, TOTAL: 15.0}


def test_every_named_function_exists_in_the_engine():
    """A function that was renamed would silently count as the rest."""
    for file, name in FUNCTIONS:
        [path] = HERD.rglob(file)
        assert f"def {name}(" in path.read_text(), f"{file} has no {name}"


def test_profiling_ends_with_the_run_and_counts_its_passes_alone():
    passes = {"products": 100.0}

    def run() -> None:
        until = time.perf_counter() + 0.02
        while time.perf_counter() < until:
            pass
        passes["products"] += 0.01

    parts = profile(run, lambda: dict(passes))
    assert parts["products"] == pytest.approx(0.01)
    assert parts[REST] == pytest.approx(parts[TOTAL] - 0.01)
    assert sys.getprofile() is None

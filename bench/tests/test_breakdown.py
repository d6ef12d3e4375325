import sys
from pathlib import Path

from bench.lib.breakdown import PARTS, REST, TOTAL, Functions, by_part, profile

HERD = Path(__file__).parents[2] / "services" / "modelserver" / "herd"


def test_time_is_summed_by_part_and_the_rest_is_named():
    functions: Functions = {
        ("/x/precision.py", 1, "__call__"): (1, 1, 0.5, 2.0, {}),
        ("/x/precision.py", 9, "__call__"): (1, 1, 0.5, 1.0, {}),
        ("/x/sampler.py", 3, "sample"): (1, 1, 0.1, 4.0, {}),
        ("/x/other.py", 3, "sample"): (1, 1, 0.1, 9.0, {}),
    }
    parts = by_part(functions, total=10.0)
    assert parts == {"sampler": 4.0, "linear": 3.0, REST: 3.0, TOTAL: 10.0}
    assert list(parts) == ["sampler", "linear", REST, TOTAL]


def test_every_named_function_exists_in_the_engine():
    """A function that was renamed would silently count as the rest."""
    for file, name in PARTS:
        [path] = HERD.rglob(file)
        assert f"def {name}(" in path.read_text(), f"{file} has no {name}"


def test_profiling_ends_with_the_run():
    parts = profile(lambda: sum(range(10**5)))
    assert 0.0 < parts[TOTAL] == parts[REST]
    assert sys.getprofile() is None

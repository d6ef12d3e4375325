"""Where an engine's time goes: the compiled pass by its own watch, the rest by Python's profiler.

cProfile with builtins off costs about a microsecond per Python call, some hundred of which are in
a step of milliseconds. Time under a listed function counts there, with all it calls; no listed
function calls another.
"""

from __future__ import annotations

import cProfile
import pstats
import time
from collections.abc import Callable, Mapping
from pathlib import PurePath

FUNCTIONS: Mapping[tuple[str, str], str] = {
    ("sampler.py", "sample"): "sampler",
    ("forward.py", "build_batch"): "layout",
    ("stack.py", "begin"): "layout",
    ("batcher.py", "plan"): "planning",
    ("batcher.py", "commit"): "planning",
}
REST = "rest"
TOTAL = "total"

Functions = Mapping[tuple[str, int, str], tuple[int, int, float, float, object]]
"""pstats' table: (file, line, name) -> (calls, calls, own seconds, seconds with callees, ...)."""

Seconds = Callable[[], Mapping[str, float]]
"""What a model's passes have taken so far, by part."""


def profile(run: Callable[[], object], seconds: Seconds) -> dict[str, float]:
    """Seconds by part, REST and TOTAL."""
    profiler = cProfile.Profile(builtins=False)
    before, started = seconds(), time.perf_counter()
    profiler.enable()
    try:
        run()
    finally:
        profiler.disable()
    total = time.perf_counter() - started
    passes = {part: after - before[part] for part, after in seconds().items()}
    functions: Functions = vars(pstats.Stats(profiler))["stats"]
    return by_part(passes, functions, total)


def by_part(passes: Mapping[str, float], functions: Functions, total: float) -> dict[str, float]:
    """The parts of the passes, pstats' table summed over FUNCTIONS, then REST and TOTAL."""
    seconds = dict(passes)
    for (file, _, name), (_, _, _, cumulative, *_) in functions.items():
        part = FUNCTIONS.get((PurePath(file).name, name))
        if part is not None:
            seconds[part] = seconds.get(part, 0.0) + cumulative
    return {**seconds, REST: max(0.0, total - sum(seconds.values())), TOTAL: total}

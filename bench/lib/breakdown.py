"""Where an engine's CPU time goes, by the engine's own functions.

cProfile with builtins off costs about a microsecond per Python call, some thousand of which are in
a step of tens of milliseconds. Time under a listed function counts there, with all it calls; no
listed function calls another.
"""

from __future__ import annotations

import cProfile
import pstats
import time
from collections.abc import Callable, Mapping
from pathlib import PurePath

PARTS: Mapping[tuple[str, str], str] = {
    ("precision.py", "__call__"): "linear",
    ("paged_attention_cpu.py", "__call__"): "attention",
    ("paged_attention_cpu.py", "__init__"): "attention",
    ("kv_cache.py", "write"): "kv write",
    ("rope.py", "apply_rope"): "rope",
    ("rope.py", "rope_tables"): "rope",
    ("llama.py", "_rms"): "norm",
    ("sampler.py", "sample"): "sampler",
    ("forward.py", "build_batch"): "layout",
    ("batcher.py", "plan"): "planning",
    ("batcher.py", "commit"): "planning",
}
REST = "rest"
TOTAL = "total"

Functions = Mapping[tuple[str, int, str], tuple[int, int, float, float, object]]
"""pstats' table: (file, line, name) -> (calls, calls, own seconds, seconds with callees, ...)."""


def profile(run: Callable[[], object]) -> dict[str, float]:
    """CPU seconds of this thread by part, REST and TOTAL."""
    profiler = cProfile.Profile(time.thread_time, builtins=False)
    started = time.thread_time()
    profiler.enable()
    try:
        run()
    finally:
        profiler.disable()
    total = time.thread_time() - started
    functions: Functions = vars(pstats.Stats(profiler))["stats"]
    return by_part(functions, total)


def by_part(functions: Functions, total: float) -> dict[str, float]:
    """Sum pstats' table over PARTS, largest first, then REST and TOTAL."""
    seconds: dict[str, float] = {}
    for (file, _, name), (_, _, _, cumulative, *_) in functions.items():
        part = PARTS.get((PurePath(file).name, name))
        if part is not None:
            seconds[part] = seconds.get(part, 0.0) + cumulative
    ordered = dict(sorted(seconds.items(), key=lambda item: -item[1]))
    return {**ordered, REST: max(0.0, total - sum(seconds.values())), TOTAL: total}

"""Whether a running instance can answer a file."""

from __future__ import annotations

import pytest

from services.cli.core.fit import Serving, misfit

RUNNING = Serving("smollm2-135m", "mine", "float32")


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (Serving("mine", "mine", None), ""),
        (Serving("mine", "mine", "float32"), ""),
        (Serving("smollm2-135m", "mine", None), ""),
        (Serving("other", "other", None), "it serves the model 'mine', not 'other'"),
        (Serving("other", "mine", None), "it serves 'smollm2-135m' as 'mine', not 'other'"),
        (Serving("mine", "mine", "int8"), "it serves 'mine' in float32, not in int8"),
    ],
)
def test_a_misfit_is_named(wanted: Serving, why: str) -> None:
    assert misfit(RUNNING, wanted) == why

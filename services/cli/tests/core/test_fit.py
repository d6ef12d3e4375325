"""Whether a running instance can answer a file."""

from __future__ import annotations

import pytest

from services.cli.core.fit import Serving, Wanted, misfit

RUNNING = Serving("smollm2-135m", "mine", "float32")
OTHER_NAME = "it serves the model 'mine', not 'smollm2-135m'"


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (Wanted("mine"), ""),
        (Wanted("mine", precision="float32"), ""),
        (Wanted("smollm2-135m", "smollm2-135m"), ""),
        (Wanted("mine", "/here/mine"), ""),
        (Wanted("smollm2-135m"), OTHER_NAME),
        (Wanted("other", "other"), "it serves the model 'mine', not 'other'"),
        (Wanted("mine", None, "int8"), "it serves 'mine' in float32, not in int8"),
    ],
)
def test_a_misfit_is_named(wanted: Wanted, why: str) -> None:
    assert misfit(RUNNING, wanted) == why

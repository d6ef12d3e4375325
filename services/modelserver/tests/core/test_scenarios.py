"""The golden scripts. `HERD_REWRITE=1 pytest ...` makes what happens now golden: read the diff."""

import os
from pathlib import Path

import pytest

from services.modelserver.tests.core.scenario import rewritten

SCRIPTS = sorted((Path(__file__).parent / "testdata").glob("*.txt"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_scenario(script: Path) -> None:
    now = rewritten(script)
    if os.environ.get("HERD_REWRITE"):
        script.write_text(now, encoding="utf-8")
    assert script.read_text(encoding="utf-8") == now


def test_the_scripts_are_found() -> None:
    assert len(SCRIPTS) >= 8

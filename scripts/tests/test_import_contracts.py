"""The allowlist contract, on small packages made here and checked by the real lint-imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.import_contracts import covers

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = """\
[importlinter]
root_packages =
    house
include_external_packages = True
contract_types =
    allowlist: scripts.import_contracts.AllowlistContract

[importlinter:contract:core]
name = core
type = allowlist
modules =
    house.*.core
project =
    house.units
third_party =
    orjson
not_stdlib =
    time
"""


def lint(folder: Path, core: str) -> tuple[int, str]:
    """Checks a project whose house/kitchen/core/plan.py holds `core`."""
    for package in ("house", "house/units", "house/kitchen", "house/kitchen/core"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").touch()
    (folder / "house/kitchen/app.py").touch()
    (folder / "house/kitchen/core/orders.py").touch()
    (folder / "house/kitchen/core/plan.py").write_text(core)
    (folder / ".importlinter").write_text(CONTRACT)
    ran = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-logo", "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.returncode, " ".join(ran.stdout.split())


@pytest.mark.parametrize(
    "line",
    [
        "import dataclasses",
        "import orjson",
        "from house.units import __doc__",
        "from house.kitchen.core import orders",
    ],
)
def test_what_is_listed_may_be_imported(tmp_path: Path, line: str) -> None:
    code, output = lint(tmp_path, line)
    assert code == 0, output


@pytest.mark.parametrize(
    ("line", "imported"),
    [
        ("import time", "time"),
        ("import grpc", "grpc"),
        ("from house.kitchen import app", "house.kitchen.app"),
    ],
)
def test_anything_else_breaks_the_contract_with_its_place(
    tmp_path: Path, line: str, imported: str
) -> None:
    code, output = lint(tmp_path, f"import dataclasses\n{line}\n")
    assert code == 1
    assert f"house.kitchen.core.plan must not import {imported} (line 2)" in output


def test_a_name_that_only_begins_alike_is_not_covered() -> None:
    assert covers(["libs.units"], "libs.units.bytes")
    assert not covers(["libs.units"], "libs.units_of_work")

"""Options that take a number with a fraction."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import typer
from typer.core import TyperGroup, TyperOption

from services.cli.main import app, main


def float_options() -> Iterator[tuple[list[str], str]]:
    """(command, option) of every one there is."""
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    waiting: list[tuple[list[str], TyperGroup]] = [([], root)]
    while waiting:
        path, group = waiting.pop()
        for name, command in group.commands.items():
            if isinstance(command, TyperGroup):
                waiting.append(([*path, name], command))
            for parameter in command.params:
                if isinstance(parameter, TyperOption) and "float" in parameter.bare_type():
                    yield [*path, name], parameter.opts[0]


OPTIONS = list(float_options())


def test_the_price_of_a_job_is_one() -> None:
    assert (["jobs", "create"], "--price-per-engine-hour") in OPTIONS


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "1e999", "-1", "much"])
@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_what_is_no_finite_number_is_refused_in_a_sentence(
    capsys: pytest.CaptureFixture[str], command: list[str], option: str, value: str
) -> None:
    assert main([*command, f"{option}={value}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("impala: ") and said.count("\n") == 1
    assert option in said

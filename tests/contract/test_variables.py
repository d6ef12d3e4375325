"""The list of known variables is what the services, the probe and the commands read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import typer

from libs.config.known import KNOWN
from libs.config.reader import env_name
from libs.rpc.probe import ProbeConfig
from services.cli.main import app
from services.kvstore.config import KvStoreConfig
from services.leap.config import LeapConfig
from services.modelserver.testing import ScriptedConfig
from services.router.config import RouterConfig
from services.scheduler.config import SchedulerConfig

CONFIGS: tuple[Any, ...] = (
    KvStoreConfig,
    LeapConfig,
    ProbeConfig,
    RouterConfig,
    SchedulerConfig,
    ScriptedConfig,
)
READ_ELSEWHERE = {"IMPALA_CLOCK_SHIFT", "IMPALA_REWRITE_GOLDEN", "IMPALA_TORCH_INDEX"}
"""By the shifted clock of tests, by tests of golden files, by the setup."""


def variables_of(command: Any) -> Iterator[str]:
    for parameter in command.params:
        variable = parameter.envvar
        yield from [variable] if isinstance(variable, str) else variable or ()
    for each in getattr(command, "commands", {}).values():
        yield from variables_of(each)


def test_every_variable_that_something_reads_is_known_and_no_other() -> None:
    of_settings = {env_name(field) for each in CONFIGS for field in dataclasses.fields(each)}
    of_commands = set(variables_of(typer.main.get_command(app)))
    assert "IMPALA_API_KEY" in of_commands
    assert of_settings | of_commands | READ_ELSEWHERE == KNOWN

"""Options that several commands have, and how a command takes a group of them."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

Command = Callable[..., int]


def finite(value: float | None) -> float | None:
    """For every option that takes a float: its parser takes "inf" and "nan", JSON does not."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no finite number")
    return value


State = Annotated[
    Path | None,
    typer.Option("--state", help="State folder of the instance.", envvar="IMPALA_STATE"),
]
ApiKey = Annotated[
    str, typer.Option("--api-key", help="API key, if the router asks.", envvar="IMPALA_API_KEY")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Window = Annotated[
    str, typer.Option("--window", help='Completion window: "24h", "<n>h" or "unlimited".')
]
Limit = Annotated[int, typer.Option("--limit", help="How many at most.", min=1, max=100)]


def grouped(**groups: Callable[..., Any]) -> Callable[[Command], Command]:
    """Options by the group: `@grouped(router=AtRouter)` gives a command the options that the fields
    of the dataclass AtRouter are, and calls it with `router=AtRouter(...)` made of what was given.
    """

    def decorate(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True)
        fields = {
            name: inspect.signature(group, eval_str=True).parameters
            for name, group in groups.items()
        }

        @functools.wraps(command)
        def taken(**given: Any) -> int:
            made = {
                name: groups[name](**{field: given.pop(field) for field in fields[name]})
                for name in groups
            }
            return command(**given, **made)

        parameters = [each for name, each in own.parameters.items() if name not in groups]
        for group in fields.values():
            parameters += group.values()
        taken.__dict__["__signature__"] = own.replace(parameters=parameters)
        taken.__annotations__ = {each.name: each.annotation for each in parameters}
        return taken

    return decorate

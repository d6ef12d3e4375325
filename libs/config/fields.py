"""How a configuration field is declared: default, help, range, and its parser."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

from libs.errors import StartupError

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


class ConfigError(StartupError):
    """A flag, a variable or a combination of them is wrong; the text says which and what to do."""

    exit_code = 2


def setting(
    default: Any = dataclasses.MISSING,
    help: str = "",
    *,
    choices: Sequence[str] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    parse: Callable[[str], Any] | None = None,
    env: str | None = None,
) -> Any:
    """A dataclass field that `read_config` can fill.

    default: the value when neither flag nor variable is given; left out, the setting is required.
    help:    one sentence with the unit and the meaning of zero.
    choices: the only texts allowed. minimum, maximum: inclusive bounds of a number.
    parse:   text to value, raising ValueError with a reason; None derives it from the type.
    env:     the variable's name, instead of `IMPALA_<FIELD>`.
    """
    metadata = {
        "help": help,
        "choices": tuple(choices),
        "minimum": minimum,
        "maximum": maximum,
        "parse": parse,
        "env": env,
    }
    return dataclasses.field(default=default, metadata=metadata)


def port_setting(default: int, help: str = "TCP port to listen on; 0 picks a free one.") -> Any:
    """A TCP port, 0 to 65535."""
    return setting(default, help, minimum=0, maximum=65535)


def parse_bytes(text: str) -> int:
    """Bytes from "1048576", "1MiB", "1.5G" (binary) or "1MB" (decimal).

    A bare letter is binary, as memory is bought; `kB`, `MB`, ... with a `b` and no `i` are decimal.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError("not a size like 512MiB, 2GiB or 1048576")
    number, unit, binary = match.groups()
    decimal = bool(unit) and not binary and text.strip().lower().endswith("b")
    return int(float(number) * (1000 if decimal else 1024) ** _POWER[unit.lower()])

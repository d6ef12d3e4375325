"""Flags and environment into a frozen dataclass: `read_config` raises, `parse_config` exits."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import math
import os
import pathlib
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, Protocol, TypeVar

from libs.config.fields import ConfigError

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off", "")


class Dataclass(Protocol):
    """Any dataclass type's instance."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


T = TypeVar("T", bound=Dataclass)


def parse_config(
    cls: type[T],
    argv: Sequence[str],
    *,
    prog: str | None = None,
    env: Mapping[str, str] | None = None,
) -> T:
    """`read_config` for a program's main: one sentence on stderr and exit code 2 on a mistake."""
    try:
        return read_config(cls, argv, prog=prog, env=env)
    except ConfigError as error:
        print(f"{prog or 'impala'}: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None


def read_config(
    cls: type[T],
    argv: Sequence[str],
    *,
    prog: str | None = None,
    env: Mapping[str, str] | None = None,
) -> T:
    """Fill `cls` from `argv` (without the program's name), then `env`, then its defaults.

    Raises ConfigError for an unknown flag, a missing or malformed value, one out of range, and
    whatever the class's own `__post_init__` refuses. `--help` prints and exits 0.
    """
    variables = os.environ if env is None else env
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)
    given = vars(_parser(cls, fields, hints, prog).parse_args(list(argv)))
    values: dict[str, Any] = {}
    for field in fields:
        variable = env_name(field)
        if field.name in given:
            origin, text = flag_name(field), given[field.name]
        elif variable in variables:
            origin, text = variable, variables[variable]
        elif _required(field):
            raise ConfigError(f"{flag_name(field)} is required (or set {variable}).")
        else:
            continue
        values[field.name] = _value(field, hints[field.name], text, origin)
    return cls(**values)


def flag_name(field: dataclasses.Field[Any]) -> str:
    return "--" + field.name.replace("_", "-")


def env_name(field: dataclasses.Field[Any]) -> str:
    return field.metadata.get("env") or "IMPALA_" + field.name.upper()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message[0].upper() + message[1:] + "; --help lists every flag.")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        known, extra = self.parse_known_args(args, namespace)
        if extra:
            self.error(self._unknown(extra[0]))
        return known

    def _unknown(self, word: str) -> str:
        flag = word.split("=")[0]
        near = difflib.get_close_matches(flag, list(self._option_string_actions), n=1)
        kind = "flag" if word.startswith("-") else "argument"
        return f"there is no {kind} {flag}" + (f", did you mean {near[0]}?" if near else "")


def _parser(
    cls: type[Any],
    fields: Sequence[dataclasses.Field[Any]],
    hints: Mapping[str, Any],
    prog: str | None,
) -> _Parser:
    parser = _Parser(
        prog=prog,
        description=(cls.__doc__ or "").strip().split("\n")[0],
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    for field in fields:
        boolean = _plain(hints[field.name]) is bool
        parser.add_argument(
            flag_name(field),
            dest=field.name,
            help=_help(field).replace("%", "%%"),
            metavar="true|false" if boolean else _metavar(field, hints[field.name]),
            nargs="?" if boolean else None,
            const="true" if boolean else None,
        )
    return parser


def _required(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def _help(field: dataclasses.Field[Any]) -> str:
    default = "required" if _required(field) else f"default: {field.default}"
    return f"{field.metadata.get('help', '')} [{default}; {env_name(field)}]".strip()


def _metavar(field: dataclasses.Field[Any], hint: Any) -> str:
    choices = field.metadata.get("choices")
    return "|".join(choices) if choices else getattr(_plain(hint), "__name__", "value").upper()


def _plain(hint: Any) -> Any:
    """`X` of `X | None`; a tuple's generic type as it is."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(arm for arm in typing.get_args(hint) if arm is not type(None))
    return hint


def _value(field: dataclasses.Field[Any], hint: Any, text: str, origin: str) -> Any:
    choices = field.metadata.get("choices", ())
    if choices and text not in choices:
        raise ConfigError(f"{origin} is {text!r}, but must be one of {', '.join(choices)}.")
    parse = field.metadata.get("parse") or _parse_for(hint)
    try:
        value = parse(text)
    except ValueError as error:
        raise ConfigError(f"{origin} is {text!r}: {error}.") from None
    low, high = field.metadata.get("minimum"), field.metadata.get("maximum")
    if low is not None and value < low:
        raise ConfigError(f"{origin} is {text}, but must be at least {low}.")
    if high is not None and value > high:
        raise ConfigError(f"{origin} is {text}, but must be at most {high}.")
    return value


def _parse_for(hint: Any) -> Callable[[str], Any]:
    plain = _plain(hint)
    if typing.get_origin(plain) is tuple:
        item = _parse_for(typing.get_args(plain)[0])
        return lambda text: tuple(item(part.strip()) for part in text.split(",") if part.strip())
    try:
        return _PARSERS[plain]
    except KeyError:
        raise TypeError(f"a setting of type {hint} needs its own parse=") from None


def _parse_bool(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError("not true or false")


def _parse_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("not a whole number") from None


def _parse_float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("not a number") from None
    if not math.isfinite(value):
        raise ValueError("not a finite number")
    return value


_PARSERS: dict[Any, Callable[[str], Any]] = {
    bool: _parse_bool,
    int: _parse_int,
    float: _parse_float,
    str: str,
    pathlib.Path: pathlib.Path,
}

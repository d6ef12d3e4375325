"""Jinja as Hugging Face chat templates expect it, in a sandbox.

A template comes with a model, so it is foreign code: the sandbox keeps it from Python's insides
and from changing what it is given.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks text for training; here it is just text."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class RaisedByTemplate(jinja2.TemplateError):
    """The template called `raise_exception`."""


def compile_template(source: str, now: Callable[[], datetime]) -> jinja2.Template:
    """Raises `jinja2.TemplateError` where the source is none. `now` is the templates' clock."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    template = environment.from_string(source)
    # Jinja keeps them in a chain of maps and copies that at each rendering, key by key.
    template.globals = dict(template.globals)
    return template


def _raise_exception(message: object) -> NoReturn:
    raise RaisedByTemplate(str(message))


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes <, > and & for HTML, which models were not trained on.
    options: dict[str, Any] = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)

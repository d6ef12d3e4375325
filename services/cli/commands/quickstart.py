"""impala quickstart: a batch of real agent steps on a real model, from nothing."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import orjson
import typer

from libs.demo.model import DEMO
from services.cli.commands.run import show_errors
from services.cli.errors import CliError
from services.cli.invocation import typed
from services.cli.ledger import batch_rows
from services.cli.one_shot import Answered, OneShot, answer
from services.cli.output import pairs, say, table

EXAMPLE = Path(__file__).parents[3] / "examples" / "agent_steps.jsonl"
SHOWN = 64


def register(app: typer.Typer) -> None:
    app.command()(quickstart)


def quickstart() -> int:
    """Answer four runs of real agents, 16 steps, with the demo model, and show what it cost."""
    if not EXAMPLE.is_file():
        raise CliError(f"The example {EXAMPLE} is missing: run this from a checkout.")
    say(f"Answering {EXAMPLE.name}: real agent steps, on the demo model {DEMO.alias}.")
    with tempfile.TemporaryDirectory(prefix="impala-quickstart-") as folder:
        wish = OneShot(
            input=EXAMPLE,
            output=Path(folder) / "answers.jsonl",
            model=DEMO.alias,
            always_start=True,
        )
        answered = asyncio.run(answer(wish))
        show_errors(answered)
        _show_answers(answered)
    pairs("\nThe run", batch_rows(answered.batch, answered.run))
    say(
        "\nNext:\n"
        f"  {typed()} up\n"
        "      an instance that stays: OpenAI's API over HTTP, and gRPC\n"
        f"  {typed()} run {_short(EXAMPLE)} -o answers.jsonl\n"
        "      the same in one command, for files of yours\n"
        "  docs/architecture.md\n"
        "      what happened here, step by step"
    )
    return answered.exit_code


def _show_answers(answered: Answered) -> None:
    paths = [each for each in (answered.files.output, answered.files.errors) if each]
    lines = [orjson.loads(line) for path in paths for line in path.read_bytes().splitlines()]
    rows = [_row(line) for line in sorted(lines, key=lambda line: str(line["custom_id"]))]
    table(("step", "status>", "answer", "prompt>", "cached>", "completion>"), rows)


def _row(line: dict[str, Any]) -> tuple[object, ...]:
    response = line.get("response") or {}
    body = response.get("body") or {}
    usage = body.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    return (
        line["custom_id"],
        response.get("status_code"),
        _said(line, body),
        usage.get("prompt_tokens"),
        details.get("cached_tokens"),
        usage.get("completion_tokens"),
    )


def _said(line: dict[str, Any], body: dict[str, Any]) -> str:
    """The first words of the answer, or the error's message."""
    error = body.get("error") or line.get("error")
    if error:
        return str(error.get("message"))
    choices = body.get("choices") or [{}]
    text = choices[0].get("message", {}).get("content") or ""
    words = " ".join(text.split())
    return words if len(words) <= SHOWN else words[: SHOWN - 4] + " ..."


def _short(path: Path) -> Path:
    """As it can be typed from here."""
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path

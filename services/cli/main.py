"""`impala`: the command line's entry."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer._click.exceptions import ClickException, NoArgsIsHelpError

from libs.errors import ImpalaError, StartupError
from services.cli.commands import batch, files, jobs, keys, kv, quickstart, run, runs, up
from services.cli.errors import FAILED, INTERRUPTED
from services.cli.output import say
from services.cli.version import VERSION

app = typer.Typer(
    name="impala",
    help="Serves open-weight language models to asynchronous agents.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"impala {VERSION}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    """Serves open-weight language models to asynchronous agents."""


for family in (up, run, quickstart):
    family.register(app)
for name, group in (
    ("batch", batch.app),
    ("jobs", jobs.app),
    ("runs", runs.app),
    ("files", files.app),
    ("keys", keys.app),
    ("kv", kv.app),
):
    app.add_typer(group, name=name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command of `arguments`, sys.argv's if None, and returns its exit code."""
    try:
        code = app(args=arguments, prog_name="impala", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except typer.Exit as end:
        return int(end.exit_code)
    except NoArgsIsHelpError as error:
        print(error.format_message())
        return error.exit_code
    except ClickException as error:
        say(f"impala: {_with_hint(error.format_message(), error)}")
        return error.exit_code
    except StartupError as error:
        say(f"impala: {error}")
        return error.exit_code
    except ImpalaError as error:
        say(f"impala: {error}")
        return FAILED
    except (KeyboardInterrupt, typer.Abort):
        say("impala: interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe has seen enough; nothing more can be written, not even at exit.
        sys.stdout = sys.stderr
        return FAILED
    except OSError as error:
        # The machine's fault (a full disk, a folder taken away), not the program's.
        if error.errno is None:
            raise
        where = f"{error.filename}: " if error.filename else ""
        say(f"impala: {where}{error.strerror}.")
        return FAILED


def _with_hint(message: str, error: ClickException) -> str:
    """The usage error's sentence and where the flags are listed."""
    context = getattr(error, "ctx", None)
    if context is None:
        return message
    return f"{message.rstrip('.')}. '{context.command_path} --help' lists what there is."


if __name__ == "__main__":
    sys.exit(main())

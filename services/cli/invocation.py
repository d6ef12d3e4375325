"""How the command that runs can be typed again."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path


def typed(python: str = sys.executable, search: str | None = None) -> str:
    """`impala` where PATH leads to this very program, else its path, ready for a shell.

    python: the interpreter that runs it; search: PATH, None = the environment's.
    """
    script = Path(python).with_name("impala")
    if not script.is_file():
        return f"{shlex.quote(python)} -m services.cli.main"
    found = shutil.which("impala", path=search)
    if found and os.path.samefile(found, script):
        return "impala"
    here = Path.cwd()
    return shlex.quote(str(script.relative_to(here) if script.is_relative_to(here) else script))

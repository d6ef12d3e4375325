"""Writes requirements.lock: the exact versions of everything that requirements.in brings in.

Installs requirements.in into an empty environment, so that nothing left over from another install
gets in, and pins what is there. Local labels (2.13.0+cpu) are cut: the same pin must take the build
that the machine's own index offers. Why there are no hashes: docs/dependencies.md.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = """\
# Made by `make lock` from requirements.in: do not edit.
# The closure on Linux x86-64 with a CPU build of torch. torch's CUDA builds bring more packages,
# which torch itself pins.
"""


def pin(line: str) -> str:
    name, _, version = line.partition("==")
    return f"{name}=={version.split('+')[0]}"


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="impala-lock-") as folder:
        print("installing requirements.in into an empty environment (minutes)", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [f"{folder}/bin/python", "-m", "pip", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "-q", "-r", ROOT / "requirements.in"], check=True)
        freeze = [*pip, "freeze", "--all", "--exclude", "pip"]
        frozen = subprocess.run(freeze, check=True, capture_output=True, text=True).stdout
    pins = sorted((pin(line) for line in frozen.splitlines()), key=str.lower)
    (ROOT / "requirements.lock").write_text(HEADER + "".join(f"{each}\n" for each in pins))
    print(f"requirements.lock: {len(pins)} pins", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())

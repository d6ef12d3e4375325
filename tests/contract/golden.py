"""Golden files of the contract: compared with what is now, or written anew when asked to."""

from __future__ import annotations

import os
from pathlib import Path

TESTDATA = Path(__file__).parent / "testdata"
UNIMPLEMENTED = "unimplemented.txt"
REWRITE = "IMPALA_REWRITE_GOLDEN"


def check_golden(name: str, now: str, what: str) -> None:
    """AssertionError, with the command that accepts the change, unless `now` is what is pinned."""
    path = TESTDATA / name
    if os.environ.get(REWRITE) == "1":
        path.write_text(now)
    pinned = path.read_text().splitlines()
    current = now.splitlines()
    gone = [f"- {line}" for line in pinned if line not in set(current)]
    new = [f"+ {line}" for line in current if line not in set(pinned)]
    changes = "\n".join(gone + new) or "(only their order)"
    assert pinned == current, (
        f"{what}\n{changes}\nIf that is meant: {REWRITE}=1 python -m pytest tests/contract, and "
        f"commit {path.name}."
    )


def unimplemented() -> set[tuple[str, str]]:
    """The rpcs that nobody serves yet, by full name, each with the reason that it is refused for:
    the one list of them, which test_services.py keeps true."""
    lines = (TESTDATA / UNIMPLEMENTED).read_text().splitlines()
    return {(name, reason) for name, _, reason in (line.partition(" ") for line in lines)}

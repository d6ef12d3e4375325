"""Runs `pip install -r` with a progress line in place of pip's own output.

pip's whole output goes to a log file; what a person needs to see of a failure is one sentence.
"""

from __future__ import annotations

import queue
import re
import subprocess
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from libs.demo.progress import Progress

NETWORK_WORDS = re.compile(
    r"name resolution|Name or service not known|NewConnectionError|Network is unreachable"
    r"|Connection refused|timed out|ProxyError"
)
LINES_KEPT = 200

Sink = Callable[[str], object]


class InstallError(Exception):
    """pip failed; the message is one sentence with its reason and the log's path."""


def count_pins(lock: Path) -> int:
    lines = (line.strip() for line in lock.read_text().splitlines())
    return sum(1 for line in lines if line and not line.startswith(("#", "-")))


def describe(line: str, collected: int, total: int) -> str | None:
    """What one line of pip's output means to someone waiting, None if nothing."""
    line = line.strip()
    if line.startswith("Downloading "):
        what = re.sub(r"-\d[^ ]*\.(whl|tar\.gz|metadata)", "", line.removeprefix("Downloading "))
        return f"{collected}/{total} found, downloading {what.split('/')[-1]}"
    if line.startswith("Collecting "):
        return f"{collected}/{total} found, {line.split()[1].split('==')[0]}"
    if line.startswith("Installing collected packages"):
        return f"writing {line.count(',') + 1} packages"
    if "Retrying" in line:
        return "no answer from the package index, trying again"
    return None


def follow(
    process: subprocess.Popen[str],
    progress: Progress,
    total: int,
    sinks: list[Callable[[str], object]],
) -> None:
    """Shows the output as progress until the process has ended; each line goes to the sinks too."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    reader = threading.Thread(target=read_into, args=(process, lines), daemon=True)
    reader.start()
    text, collected = "starting", 0
    while True:
        progress.update(text)
        try:
            line = lines.get(timeout=1.0)
        except queue.Empty:
            continue
        if line is None:
            break
        for sink in sinks:
            sink(line)
        collected += line.lstrip().startswith("Collecting ")
        text = describe(line, collected, total) or text
    process.wait()


def read_into(process: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> None:
    assert process.stdout is not None
    with process.stdout as output:
        for line in output:
            lines.put(line)
    lines.put(None)


def failure(tail: list[str], log: Path) -> InstallError:
    """The sentence for a failed run, from the last lines of pip's output."""
    errors = [line.strip() for line in tail if line.startswith("ERROR:")]
    reason = errors[-1].removeprefix("ERROR: ") if errors else "pip stopped without a reason"
    if any(NETWORK_WORDS.search(line) for line in tail):
        return InstallError(
            "the package index cannot be reached: check the network, or set PIP_INDEX_URL to an "
            f"index that can (pip's log: {log})"
        )
    return InstallError(f"pip could not install the dependencies: {reason} (pip's log: {log})")


def install(python: Path, lock: Path, torch_index: str | None, log: Path) -> None:
    """Installs everything in lock into python's environment.

    torch_index, if given, is looked in too; its builds win over equal versions elsewhere where
    they carry a local label (2.13.0+cpu is newer than 2.13.0 to pip). Raises InstallError.
    """
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-color"]
    command += ["install", "--no-input", "--progress-bar", "off", "-r", str(lock)]
    if torch_index:
        command += ["--extra-index-url", torch_index]
    progress = Progress("dependencies")
    total = count_pins(lock)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    tail = deque[str](maxlen=LINES_KEPT)
    try:
        with log.open("w") as copy:
            follow(process, progress, total, [tail.append, copy.write])
    except BaseException:
        process.kill()
        process.wait()
        raise
    if process.returncode != 0:
        progress.clear()
        raise failure(list(tail), log)
    progress.done(f"{total} packages in place")

"""Runs pytest on the files named as arguments (paths from the workspace), as Bazel asks for it.

Bazel says by its environment where the report goes (XML_OUTPUT_FILE), where a test may write
(TEST_TMPDIR), and what `--test_filter` was (TESTBRIDGE_TEST_ONLY, an expression for -k).
"""

from __future__ import annotations

import os
import sys

import pytest


def main(files: list[str]) -> int:
    scratch = os.environ["TEST_TMPDIR"]
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = os.path.join(scratch, "hypothesis")
    options = [
        "--config-file=pyproject.toml",
        "--rootdir=.",
        f"--basetemp={os.path.join(scratch, 'pytest')}",
        "-p",
        "no:cacheprovider",
        "-q",
    ]
    if report := os.environ.get("XML_OUTPUT_FILE"):
        options.append(f"--junitxml={report}")
    if chosen := os.environ.get("TESTBRIDGE_TEST_ONLY"):
        options += ["-k", chosen]
    return int(pytest.main([*options, *files]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

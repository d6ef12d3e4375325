"""What a command ends with when it cannot do its work: one sentence and an exit code.

CliError
├── Usage           the command was written wrongly (exit code 2)
├── NotReachable    nobody answers at the URL
└── ApiError        the router answered with an error
"""

from __future__ import annotations

from libs.errors import StartupError

FAILED, USAGE, SOME_LINES_FAILED, INTERRUPTED = 1, 2, 3, 130


class CliError(StartupError):
    """The text is one sentence that says what to do."""

    exit_code = FAILED


class Usage(CliError):
    exit_code = USAGE


class NotReachable(CliError):
    pass


class ApiError(CliError):
    """status: of HTTP. code: the envelope's, for programs; empty if it had none."""

    def __init__(self, message: str, status: int, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

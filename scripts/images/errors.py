"""What ends `make images`."""

from __future__ import annotations


class ImagesError(Exception):
    """The message is one sentence that says what is wrong and, where it can, what to do."""

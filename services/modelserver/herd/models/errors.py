"""What can go wrong with a model before it serves.

ModelError
 +- ModelNotFound            the path leads to no weights
 +- UnsupportedModel         the weights are readable, but this engine has no code for them
 +- BadWeights               a file is damaged, or does not hold what its config promises
"""

from __future__ import annotations


class ModelError(Exception):
    """A model cannot be used. The message is one sentence that says what to do."""


class ModelNotFound(ModelError):
    """The path holds no folder or file that a model can be read from."""


class UnsupportedModel(ModelError):
    """An architecture or an option of one that Herd does not implement."""


class BadWeights(ModelError):
    """A weight file contradicts its config; the message names the tensor or the file."""

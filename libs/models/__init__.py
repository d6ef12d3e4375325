"""From a model's name, as a user types it, to its files on this machine."""

from libs.models.resolve import ModelNotFound, resolve_model

__all__ = ["ModelNotFound", "resolve_model"]

"""From what a user types after ``--model`` to a folder or file on this machine."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from services.modelserver.herd.models.errors import ModelNotFound

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
HUB_FILES = ["*.safetensors", "*.json", "tokenizer.model", "*.jinja"]

Alias = Callable[[str], Path | None]
"""Gives the path for a known short name (fetching it where needed), None for any other name."""

Download = Callable[[str], Path]
"""Fetches a hub id, returns its folder; raises ModelNotFound."""


def download_from_hub(hub_id: str) -> Path:
    """The snapshot folder of ``hub_id``, fetched by ``huggingface_hub`` or found in its cache."""
    import huggingface_hub
    from httpx import HTTPError
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        folder = huggingface_hub.snapshot_download(hub_id, allow_patterns=HUB_FILES)
    except (HfHubHTTPError, LocalEntryNotFoundError, HTTPError, OSError) as error:
        raise ModelNotFound(
            f"{hub_id} could not be fetched from the model hub ({type(error).__name__}); "
            "name a local folder or .gguf file instead"
        ) from error
    return Path(folder)


def resolve_model(
    name: str, *, alias: Alias = lambda _: None, download: Download = download_from_hub
) -> Path:
    """A model folder or ``.gguf`` file for ``name``: an alias, a path, or a hub id, in that order.

    Raises ModelNotFound with a sentence that says what would have been accepted.
    """
    known = alias(name)
    if known is not None:
        return known
    path = Path(name).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path.resolve()
    if path.is_file():
        raise ModelNotFound(f"{name} is a file, but not a .gguf file")
    if HUB_ID.fullmatch(name):
        return download(name)
    raise ModelNotFound(
        f"no model {name}: give a safetensors folder, a .gguf file, a hub id (org/name) or an alias"
    )

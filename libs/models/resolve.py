"""From what a user types after `--model` to a folder or a GGUF file on this machine."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from libs.demo.model import DEMO, DemoModelError, ensure_demo_model
from libs.errors import StartupError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
HUB_FILES = ("*.safetensors", "*.json", "tokenizer.model", "*.jinja")

Progress = Callable[[str], None]
"""Told in one short line what is being fetched, before it is."""

Download = Callable[[str, Path], Path]
"""(hub id, cache folder) -> snapshot folder; raises ModelNotFound."""


class ModelNotFound(StartupError):
    """The name leads to no model that can be had here; one sentence that says what would."""


def resolve_model(
    name: str,
    cache_dir: Path,
    on_progress: Progress = lambda _: None,
    *,
    download: Download | None = None,
) -> Path:
    """The folder or `.gguf` file for `name`; blocking, and slow where it has to be fetched.

    name: the demo's alias `smollm2-135m`, a path to a folder with `config.json` or to a GGUF
    file, or a hub id (`org/name`). What exists on disk comes before the hub.
    Raises ModelNotFound.
    """
    if name == DEMO.alias:
        return _demo(cache_dir, on_progress)
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelNotFound(f"The folder {name} holds no model: it has no config.json.")
        return path.resolve()
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelNotFound(
                f"The file {name} is not a .gguf file: name one, or a folder of safetensors."
            )
        return path.resolve()
    if HUB_ID.fullmatch(name):
        on_progress(f"fetching {name} from the model hub")
        return (download or download_from_hub)(name, cache_dir)
    raise ModelNotFound(
        f"There is no model {name!r}: give a folder, a .gguf file, a hub id (org/name), or the "
        f"alias {DEMO.alias}."
    )


def _demo(cache_dir: Path, on_progress: Progress) -> Path:
    on_progress(f"looking for {DEMO.alias}")
    try:
        return ensure_demo_model(cache_dir)
    except (DemoModelError, OSError) as error:
        raise ModelNotFound(f"The demo model {DEMO.alias} cannot be had: {error}") from error


def download_from_hub(hub_id: str, cache_dir: Path, *, endpoint: str | None = None) -> Path:
    """The snapshot's folder. endpoint: the hub's URL; None = as its client is configured.

    Raises ModelNotFound, which tells apart what the hub's client does.
    """
    import huggingface_hub

    try:
        folder = huggingface_hub.snapshot_download(
            hub_id,
            allow_patterns=list(HUB_FILES),
            cache_dir=cache_dir / "hub",
            endpoint=endpoint,
        )
    # The hub's client raises errors of four unrelated libraries, and more by version.
    except Exception as error:
        raise ModelNotFound(f"{_hub_reason(hub_id, error)}.") from error
    return Path(folder)


def _hub_reason(hub_id: str, error: Exception) -> str:
    from huggingface_hub import errors

    local = "name a local folder or .gguf file instead"
    # A gated repository's error is a kind of one that is not found.
    if isinstance(error, errors.GatedRepoError):
        return (
            f"The model {hub_id} is gated: accept its terms on the hub and set HF_TOKEN to a token "
            "of that account"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"The hub has no model {hub_id}, or it is private: mind the spelling, or set HF_TOKEN "
            "to a token that may read it"
        )
    if isinstance(error, errors.LocalEntryNotFoundError) and not _answered(error):
        return f"The model hub cannot be reached from here to fetch {hub_id}: {local}"
    name = type(error.__cause__ or error).__name__
    return f"The model {hub_id} could not be fetched from the hub ({name}): {local}"


def _answered(error: Exception) -> bool:
    """Whether the hub itself had answered, with whatever error."""
    from huggingface_hub import errors

    return isinstance(error.__cause__, errors.HfHubHTTPError)

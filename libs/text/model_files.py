"""Where a model's tokenizer files are; converts them once where they are not there yet."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from libs.text.errors import TokenizerError

CONVERT_TIMEOUT_S = 600.0
_DIGESTED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What a folder says about its tokenizer."""

    tokenizer_json: Path
    chat_template: str | None
    special_tokens: dict[str, str] = field(default_factory=dict)
    """`bos_token` and the like, by name; what templates call them."""
    eos_ids: frozenset[int] = frozenset()
    """As the model's configurations say; the tokenizer's own `eos_token` may be one more."""
    max_context: int | None = None
    """Tokens; None where nothing says."""


def find_model_files(model_path: Path, cache_dir: Path) -> ModelFiles:
    """The files of a Hugging Face folder or a GGUF file.

    What has no `tokenizer.json` is converted by a subprocess, once, into `cache_dir`.
    """
    if model_path.is_dir() and (model_path / "tokenizer.json").is_file():
        return read_folder(model_path)
    if model_path.is_dir() or model_path.suffix == ".gguf":
        return read_folder(_converted(model_path, cache_dir))
    if not model_path.exists():
        raise TokenizerError(f"There is no model at {model_path}.")
    raise TokenizerError(f"{model_path} is neither a model folder nor a .gguf file.")


def read_folder(folder: Path) -> ModelFiles:
    settings = _read_json(folder / "tokenizer_config.json")
    model = _read_json(folder / "config.json")
    generation = _read_json(folder / "generation_config.json")
    text_model = model.get("text_config") or model
    context = text_model.get("max_position_embeddings") or settings.get("model_max_length")
    ends = [generation.get("eos_token_id"), model.get("eos_token_id")]
    return ModelFiles(
        tokenizer_json=folder / "tokenizer.json",
        chat_template=_chat_template(folder, settings),
        special_tokens=_special_tokens(folder, settings),
        eos_ids=frozenset(i for end in ends for i in _ids(end)),
        # Folders that do not know write a number of no meaning, like 1e30.
        max_context=context if isinstance(context, int) and context < 2**31 else None,
    )


def _chat_template(folder: Path, settings: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text()
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _special_tokens(folder: Path, settings: dict[str, Any]) -> dict[str, str]:
    found = {}
    for name, value in (_read_json(folder / "special_tokens_map.json") | settings).items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def _ids(value: object) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, int)]


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise TokenizerError(f"{path} is not valid JSON: {error}.") from error
    return value if isinstance(value, dict) else {}


def _converted(source: Path, cache_dir: Path) -> Path:
    if not source.exists():
        raise TokenizerError(f"There is no model at {source}.")
    target = cache_dir / _source_key(source)
    if (target / "tokenizer.json").is_file():
        return target
    cache_dir.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="converting-", dir=cache_dir))
    try:
        _run_conversion(source, work)
        try:
            work.rename(target)
        except OSError:
            # Another process was first; its result is the same.
            if not (target / "tokenizer.json").is_file():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _run_conversion(source: Path, work: Path) -> None:
    command = [sys.executable, "-m", "libs.text.convert", str(source.resolve()), str(work)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=CONVERT_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        message = f"Converting the tokenizer of {source} took more than {CONVERT_TIMEOUT_S:g} s."
        raise TokenizerError(message) from error
    if done.returncode != 0 or not (work / "tokenizer.json").is_file():
        why = (done.stderr.strip().splitlines() or ["no tokenizer.json came of it"])[-1]
        raise TokenizerError(f"The tokenizer of {source} cannot be converted: {why}")


def _source_key(source: Path) -> str:
    """A name for the source as it is now: a file's head, size and time; a folder's entries."""
    digest = hashlib.blake2b(digest_size=16)
    files = [source] if source.is_file() else sorted(p for p in source.iterdir() if p.is_file())
    for file in files:
        stat = file.stat()
        digest.update(f"{file.name}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
        if source.is_file():
            with file.open("rb") as stream:
                digest.update(stream.read(_DIGESTED_BYTES))
    return f"tokenizer-{digest.hexdigest()}"

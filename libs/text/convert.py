"""Makes a `tokenizer.json` folder of a GGUF file or of a folder without one.

Runs as a program of its own (`python -m libs.text.convert SOURCE TARGET`), because it needs
transformers, which the services that use the result must not import.

The folder gets `tokenizer.json`, `tokenizer_config.json`, `chat_template.jinja` where the model
has a template, and a `config.json` with what the tokenizer's users need of the model:
`max_position_embeddings` and `eos_token_id`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def convert_gguf(source: Path, target: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
    tokenizer.save_pretrained(str(target))
    (target / "config.json").write_text(json.dumps(_gguf_config(source)))


def convert_folder(source: Path, target: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(source), use_fast=True)
    tokenizer.save_pretrained(str(target))
    for name in ("config.json", "generation_config.json"):
        if (source / name).is_file():
            (target / name).write_bytes((source / name).read_bytes())


def _gguf_config(source: Path) -> dict[str, Any]:
    from gguf import GGUFReader

    fields = GGUFReader(str(source)).fields

    def read(name: str) -> Any:
        return fields[name].contents() if name in fields else None

    ends = [read(f"tokenizer.ggml.{key}") for key in _END_KEYS]
    return {
        "max_position_embeddings": read(f"{read('general.architecture')}.context_length"),
        "eos_token_id": [int(end) for end in ends if end is not None],
    }


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    target.mkdir(parents=True, exist_ok=True)
    if source.is_file():
        convert_gguf(source, target)
    else:
        convert_folder(source, target)


if __name__ == "__main__":
    main()

"""`python -m libs.models.prepare MODEL`: brings a model into the cache, ahead of the services.

What a model server and a router would each do at their start: the weights are fetched, and the
tokenizer of a GGUF file is converted into where routers look. Deployments run it once on a cache
that both share, because the conversion needs transformers and torch, which a router's image leaves
out. Exit code 1 after one sentence when the model cannot be had.
"""

from __future__ import annotations

import sys
from pathlib import Path

from libs.demo.cache import cache_dir
from libs.errors import ImpalaError, StartupError
from libs.models.resolve import resolve_model
from libs.text.model_files import find_model_files


def prepare(name: str, cache: Path) -> Path:
    """The model's folder or file, with its tokenizer ready. Raises StartupError, TokenizerError."""
    path = resolve_model(name, cache, lambda doing: print(doing, file=sys.stderr, flush=True))
    find_model_files(path, cache / "tokenizers")
    return path


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(
            "prepare: give one model: an alias, a folder, a .gguf file or a hub id", file=sys.stderr
        )
        return 2
    try:
        print(prepare(sys.argv[1], cache_dir()))
    except (StartupError, ImpalaError) as error:
        print(f"prepare: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

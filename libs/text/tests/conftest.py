"""Tokenizers to test on: the demo model's, and a small one with byte fallback."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as Inner

from libs.demo.cache import cache_dir
from libs.demo.model import ensure_demo_model
from libs.text import ChatTemplate, Tokenizer, chat_template, load_tokenizer

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


@pytest.fixture(scope="session")
def demo() -> Tokenizer:
    """Converted once for all test runs: the conversion takes some seconds."""
    return load_tokenizer(ensure_demo_model(), cache_dir() / "tokenizers")


@pytest.fixture(scope="session")
def demo_template(demo: Tokenizer) -> ChatTemplate:
    return chat_template(demo, lambda: NOON)


@pytest.fixture(scope="session")
def fallback(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Words with SentencePiece's blank, all bytes, and a special token, as in Llama 2."""
    folder = tmp_path_factory.mktemp("fallback")
    words = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)]]
    words += ["\u2581", "a", "b", "\u2581a", "\u2581ab", "\u00e9", "."]
    inner = Inner(
        models.BPE(
            {word: index for index, word in enumerate(words)},
            [("\u2581", "a"), ("\u2581a", "b")],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    inner.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    inner.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    inner.add_special_tokens([AddedToken(word, special=True) for word in words[:3]])
    inner.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "model_max_length": 1e30}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text('{"eos_token_id": 2, "max_position_embeddings": 4096}')
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    return load_tokenizer(folder, Path("unused"))

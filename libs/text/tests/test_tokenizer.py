"""Text to tokens and back, on real vocabularies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.demo.model import ensure_demo_model
from libs.text import Tokenizer, TokenizerError, load_tokenizer


def test_the_demo_says_what_it_is(demo: Tokenizer) -> None:
    assert demo.vocab_size == 49_152
    assert (demo.bos_id, demo.eos_ids, demo.max_context) == (1, frozenset({2}), 8192)
    assert demo.token_text(2) == "<|im_end|>"


def test_a_folder_says_what_it_is(fallback: Tokenizer) -> None:
    assert (fallback.bos_id, fallback.eos_ids, fallback.max_context) == (1, frozenset({0, 2}), 4096)


def test_special_tokens_in_text_are_one_token(demo: Tokenizer) -> None:
    ids = demo.encode("<|im_start|>user\n")
    assert ids[0] == 1
    assert demo.decode(ids) == "user\n"
    assert demo.decode(ids, skip_special=False) == "<|im_start|>user\n"


# The demo has no tokens for some control and unassigned characters and drops bytes of them.
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc", "Cn"]), max_size=60)


@given(text=TEXT)
@settings(deadline=None)
def test_any_text_comes_back(demo: Tokenizer, text: str) -> None:
    assert demo.decode(demo.encode(text), skip_special=False) == text


@given(text=TEXT)
@settings(deadline=None)
def test_the_tokens_bytes_are_the_texts_bytes(demo: Tokenizer, text: str) -> None:
    assert b"".join(map(demo.token_bytes, demo.encode(text))) == text.encode()


def test_a_character_is_found_in_its_token(demo: Tokenizer) -> None:
    text = "<|im_start|>user\nhello \U0001f600 world<|im_end|>\n"
    ids, (start, word, face, end) = demo.encode_at(
        text, [0, text.index("hello"), text.index("\U0001f600"), len(text)]
    )
    assert (start, end) == (0, len(ids))
    assert demo.token_text(ids[word]).startswith("hello")
    assert demo.decode(ids[:face]).endswith("hello ") or demo.decode(ids[:face]).endswith("hello")


SPECIAL = st.sampled_from(["<|im_start|>", "<|im_end|>"])


@given(parts=st.lists(TEXT | SPECIAL, max_size=4), data=st.data())
@settings(deadline=None)
def test_a_place_is_the_first_token_that_ends_after_it(
    demo: Tokenizer, parts: list[str], data: st.DataObject
) -> None:
    text = "".join(parts)
    chars = data.draw(st.lists(st.integers(0, len(text)), max_size=5))
    ids, found = demo.encode_at(text, chars)
    assert ids == demo.encode(text)
    for char, token in zip(chars, found, strict=True):
        # Characters that tokens have begun, for the tokens before it and with it.
        assert token == len(ids) or len(demo.decode(ids[: token + 1], skip_special=False)) > char
        assert len(demo.decode(ids[:token], skip_special=False)) <= char + 1


def test_bytes_of_a_fallback_vocabulary(fallback: Tokenizer) -> None:
    ids = fallback.encode("ab \U0001f600")
    assert b"".join(map(fallback.token_bytes, ids)) == " ab \U0001f600".encode()


def test_loading_a_converted_model_imports_neither_torch_nor_transformers(demo: Tokenizer) -> None:
    folder = demo.files.tokenizer_json.parent
    code = (
        "import sys; from pathlib import Path; from libs.text import load_tokenizer;"
        f"load_tokenizer(Path({str(folder)!r}), Path('unused'));"
        "print([m for m in ('torch', 'transformers', 'gguf', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_a_gguf_is_converted_once_and_leaves_no_scraps(tmp_path: Path) -> None:
    first = load_tokenizer(ensure_demo_model(), tmp_path)
    (made,) = tmp_path.iterdir()
    before = made.stat().st_mtime_ns
    second = load_tokenizer(ensure_demo_model(), tmp_path)
    assert made.stat().st_mtime_ns == before
    assert first.encode("a b c") == second.encode("a b c")


@pytest.mark.slow
def test_a_broken_gguf_is_one_clear_sentence_and_leaves_no_scraps(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + os.urandom(64))
    with pytest.raises(TokenizerError, match="cannot be converted") as caught:
        load_tokenizer(broken, tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("name", ["none.gguf", "none"])
def test_a_missing_model_is_one_clear_sentence(tmp_path: Path, name: str) -> None:
    with pytest.raises(TokenizerError, match="no model at"):
        load_tokenizer(tmp_path / name, tmp_path)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.txt").touch()
    with pytest.raises(TokenizerError, match="neither a model folder nor"):
        load_tokenizer(tmp_path / "model.txt", tmp_path)


def test_a_broken_tokenizer_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path, tmp_path)

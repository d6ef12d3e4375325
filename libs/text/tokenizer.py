"""Text to token ids and back, by Hugging Face's `tokenizers`.

The vocabulary is read once and never changes; one `Tokenizer` may be used from several threads.
"""

from __future__ import annotations

import bisect
import functools
import json
from collections.abc import Sequence
from pathlib import Path

import tokenizers

from libs.text.detokenizer import ByteLevelDetokenizer, Detokenizer, WindowDetokenizer
from libs.text.errors import TokenizerError
from libs.text.model_files import ModelFiles, find_model_files


def load_tokenizer(model_path: Path, cache_dir: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face folder or a GGUF file.

    A GGUF file (or a folder without `tokenizer.json`) is converted once, by a subprocess that
    takes some seconds, into `cache_dir`. Raises `TokenizerError`.
    """
    return Tokenizer(find_model_files(model_path, cache_dir))


class Tokenizer:
    """See the module. Made by `load_tokenizer`."""

    def __init__(self, files: ModelFiles) -> None:
        self.files = files
        self._inner, self._byte_level = _open(files.tokenizer_json)
        self._special = frozenset(
            token_id
            for token_id, token in self._inner.get_added_tokens_decoder().items()
            if token.special
        )
        self._bytes_of = functools.lru_cache(maxsize=None)(self._read_bytes)

    @property
    def vocab_size(self) -> int:
        """Ids are below this, added tokens included."""
        return self._inner.get_vocab_size(with_added_tokens=True)

    @property
    def bos_id(self) -> int | None:
        return self._special_id("bos_token")

    @functools.cached_property
    def eos_ids(self) -> frozenset[int]:
        """All ids that end an answer."""
        own = self._special_id("eos_token")
        return self.files.eos_ids | ({own} if own is not None else set())

    @property
    def max_context(self) -> int | None:
        """Tokens of prompt and answer together, where the model says."""
        return self.files.max_context

    def encode(self, text: str, add_special: bool = False) -> list[int]:
        """Token ids. Special tokens written in the text become such; `add_special` adds the
        model's own around it (a rendered chat has them already)."""
        return self._encode(text, add_special).ids

    def encode_at(self, text: str, chars: Sequence[int]) -> tuple[list[int], list[int]]:
        """Token ids, and for each character position the index of the token it falls in."""
        encoding = self._encode(text, add_special=False)

        # Asked one by one: a list of all offsets is made in one go, which holds the interpreter,
        # and with it every other thread, for 50 ms at 80,000 tokens.
        def end(token: int) -> int:
            chars_of = encoding.token_to_chars(token)
            assert chars_of is not None
            return chars_of[1]

        tokens = range(len(encoding))
        return encoding.ids, [bisect.bisect_right(tokens, char, key=end) for char in chars]

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return self._inner.decode(list(ids), skip_special_tokens=skip_special)

    def detokenizer(self) -> Detokenizer:
        """A new one for one answer; agrees with `decode`."""
        if self._byte_level:
            return ByteLevelDetokenizer(self._text_bytes)
        return WindowDetokenizer(self.decode, self.token_text, self.is_special)

    def token_text(self, token_id: int) -> str:
        """The vocabulary's entry, as it is written there; "" beyond the vocabulary."""
        return self._inner.id_to_token(token_id) or ""

    def token_bytes(self, token_id: int) -> bytes:
        """What the token stands for, special ones included; possibly part of a character."""
        return self._bytes_of(token_id)

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special

    def _encode(self, text: str, add_special: bool) -> tokenizers.Encoding:
        # A batch of one: it leaves the interpreter to other threads while it works, which the
        # library's `encode` does not, for half a second at 80,000 tokens.
        (encoding,) = self._inner.encode_batch([text], add_special_tokens=add_special)
        return encoding

    def _special_id(self, name: str) -> int | None:
        token = self.files.special_tokens.get(name)
        return None if token is None else self._inner.token_to_id(token)

    def _text_bytes(self, token_id: int) -> bytes:
        return b"" if token_id in self._special else self._bytes_of(token_id)

    def _read_bytes(self, token_id: int) -> bytes:
        text = self.token_text(token_id)
        if not self._byte_level:
            if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
                return bytes([int(text[3:5], 16)])
            return text.replace("\u2581", " ").encode()
        try:
            return bytes(_BYTE_OF_CHAR[char] for char in text)
        except KeyError:  # An added token that is plain text.
            return text.encode()


def _open(path: Path) -> tuple[tokenizers.Tokenizer, bool]:
    """The tokenizer, and whether its vocabulary is of bytes."""
    try:
        inner = tokenizers.Tokenizer.from_file(str(path))
        decoder = json.loads(path.read_bytes()).get("decoder") or {}
    except Exception as error:  # The library raises bare Exception.
        raise TokenizerError(f"{path} is not a usable tokenizer: {error}.") from error
    inner.no_padding()
    inner.no_truncation()
    if decoder.get("type") == "Sequence":
        steps = decoder["decoders"]
        decoder = steps[0] if len(steps) == 1 else {}
    return inner, decoder.get("type") == "ByteLevel"


def _byte_chars() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte: itself where printable, else from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    chars = {chr(byte): byte for byte in printable}
    return chars | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF_CHAR = _byte_chars()

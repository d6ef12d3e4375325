"""Text from token ids that come in pieces; only text that can no longer change goes out.

The concatenation of all pieces is exactly the tokenizer's own decoding of all ids.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from typing import Protocol

Decode = Callable[[Sequence[int]], str]

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class Detokenizer(Protocol):
    """One answer's text. Special tokens give none."""

    def push(self, ids: Sequence[int]) -> str:
        """The text that the ids complete."""
        ...

    def finish(self) -> str:
        """What is left when no more ids come; an open character becomes U+FFFD."""
        ...


class ByteLevelDetokenizer:
    """For vocabularies of bytes (GPT-2, Llama 3, Qwen): each id has its bytes, joined as UTF-8.

    Constant work per token. Ill-formed bytes become U+FFFD by Unicode's "maximal subpart"
    practice, as in the tokenizers library.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Sequence[int]) -> str:
        return self._decoder.decode(b"".join(map(self._token_bytes, ids)))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For all other vocabularies (SentencePiece with byte fallback): decodes a short window again.

    A token's text may depend on the token before it (leading spaces are stripped from the first
    one only), and a run of byte tokens `<0xE4><0xBD><0xA0>` is decoded as a whole, so that any
    further byte may still turn all of it into U+FFFD. So the window is the last token that went
    out and all after it, and it goes out when it ends in a token that is no byte.
    """

    def __init__(
        self, decode: Decode, token_text: Callable[[int], str], is_special: Callable[[int], bool]
    ) -> None:
        self._decode = decode
        self._token_text = token_text
        self._is_special = is_special
        self._context: list[int] = []
        self._open: list[int] = []

    def push(self, ids: Sequence[int]) -> str:
        # The library drops special tokens before it joins runs of bytes, so this does too.
        self._open += [token for token in ids if not self._is_special(token)]
        end = len(self._open)
        while end and self._is_byte(self._open[end - 1]):
            end -= 1
        if end == 0:
            return ""
        closed, self._open = self._open[:end], self._open[end:]
        text = self._after_context(closed)
        self._context = closed[-1:]
        return text

    def finish(self) -> str:
        text = self._after_context(self._open)
        self._open = []
        return text

    def _after_context(self, ids: list[int]) -> str:
        before = self._decode(self._context)
        return self._decode(self._context + ids)[len(before) :]

    def _is_byte(self, token: int) -> bool:
        return _BYTE_TOKEN.fullmatch(self._token_text(token)) is not None

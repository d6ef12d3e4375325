"""A model folder with a tokenizer of single bytes and a ChatML template; it has no weights.

Token ids 0-255 are bytes in the order of the byte-level alphabet; then the special tokens.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MAX_CONTEXT = 4096


def make_tiny_model(folder: Path) -> Tokenizer:
    """Writes the folder; returns the tokenizer, for tests to speak in tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={char: id_ for id_, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    config = {"max_position_embeddings": MAX_CONTEXT, "eos_token_id": end_token(tokenizer)}
    (folder / "config.json").write_text(json.dumps(config))
    return tokenizer


def end_token(tokenizer: Tokenizer) -> int:
    found = tokenizer.token_to_id("<|im_end|>")
    assert found is not None
    return found

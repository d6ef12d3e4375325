"""Batches whose every answer is known: small agent steps for a cluster, and what they must give."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from libs.text import chat_template, load_tokenizer, tokenize_rendered
from services.modelserver.testing import ScriptedConfig, answer
from services.router.tests.tiny_model import make_tiny_model
from tests.robustness.cluster import MODEL

ENDPOINT = "/v1/chat/completions"
WORDS = ("read", "file", "patch", "test", "error", "line", "search", "apply", "commit", "tool")
REFUSED = "refused"
"""The line that no server may answer: its temperature is out of range."""


@dataclass(frozen=True, slots=True)
class Work:
    """A batch file, and custom_id -> the messages of each line that must be answered."""

    content: bytes
    messages: Mapping[str, list[dict[str, str]]]
    tokens: int


def make_work(rng: random.Random, lines: int, tokens: int) -> Work:
    """`lines` answerable lines and a refused one. Prompts share their beginning, as the steps of
    agents do; custom_ids are the same in all files."""
    system = " ".join(rng.choices(WORDS, k=24))
    steps = [f"{at}: {' '.join(rng.choices(WORDS, k=rng.randint(1, 9)))}" for at in range(lines)]
    messages = {
        f"line-{at}": [{"role": "system", "content": system}, {"role": "user", "content": step}]
        for at, step in enumerate(steps)
    }
    requests = [_request(name, each, tokens) for name, each in messages.items()]
    refused = _request(REFUSED, [{"role": "user", "content": "Hi"}], tokens, temperature=9)
    requests.insert(rng.randint(0, len(requests)), refused)
    return Work("".join(f"{line}\n" for line in requests).encode(), messages, tokens)


def _request(
    custom_id: str, messages: list[dict[str, str]], tokens: int, temperature: float = 0.0
) -> str:
    body = {
        "model": MODEL,
        "messages": messages,
        "max_tokens": tokens,
        "temperature": temperature,
        "ignore_eos": True,
    }
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": body})


class Script:
    """What the fake engine answers, computed here: neither router nor server is asked."""

    def __init__(self, folder: Path) -> None:
        """folder: made here, with the tokenizer that the cluster is to be given."""
        make_tiny_model(folder)
        self._tokenizer = load_tokenizer(folder, folder)
        self._template = chat_template(self._tokenizer, lambda: datetime.now(UTC))
        self._config = ScriptedConfig()

    def answers(self, work: Work) -> dict[str, str | None]:
        known: dict[str, str | None] = {REFUSED: None}
        for name, messages in work.messages.items():
            prompt, _ = tokenize_rendered(self._tokenizer, self._template.render(messages, ()))
            script = self._config
            tokens = answer(prompt, work.tokens, script.answers_from, script.answers_to)
            known[name] = self._tokenizer.decode(tokens)
        return known

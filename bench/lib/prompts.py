"""Real prompts of the test data as token ids of the model that is measured."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from libs.demo.cache import cache_dir
from libs.models.resolve import resolve_model
from libs.text import chat_template, load_tokenizer, tokenize_rendered

PROMPTS = Path(__file__).resolve().parents[2] / "tests" / "data" / "prompts_50.jsonl"
_DAY = datetime(2026, 1, 1)


@dataclass(frozen=True, slots=True)
class RealPrompt:
    id: str
    tokens: tuple[int, ...]


def real_prompts(model: str, path: Path = PROMPTS) -> list[RealPrompt]:
    """All of them, rendered by the model's own chat template, in the file's order."""
    tokenizer = load_tokenizer(resolve_model(model, cache_dir()), cache_dir())
    template = chat_template(tokenizer, lambda: _DAY)
    prompts = []
    for line in path.read_text("utf-8").splitlines():
        record = json.loads(line)
        ids, _ = tokenize_rendered(tokenizer, template.render(record["messages"]))
        prompts.append(RealPrompt(record["id"], tuple(ids)))
    return prompts

"""Golden greedy tokens of the demo model in float32, by transformers (scripts/make_goldens.py)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

GOLDENS = Path(__file__).parents[3] / "tests" / "data" / "goldens_smollm2.json"


@dataclass(frozen=True)
class Golden:
    """`gaps` are the reference's two best logits' distances, one a token."""

    id: str
    prompt: list[int]
    tokens: list[int]
    gaps: list[float]


def goldens() -> list[Golden]:
    """Shortest prompts first."""
    stored = [Golden(**line) for line in json.loads(GOLDENS.read_text())["goldens"]]
    return sorted(stored, key=lambda golden: len(golden.prompt))

"""Gemma 3 270M, as it comes: a GGUF file in K-quants, with windows, its own tokenizer and norms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from libs.text import Tokenizer, load_tokenizer
from services.modelserver.herd.engine.native_pass import NativePass
from services.modelserver.herd.engine.torch_pass import TorchPass
from services.modelserver.herd.models.loader import load_model
from services.modelserver.tests.models.factories import (
    Driver,
    assert_greedy_equal,
    reference_greedy,
)
from services.modelserver.tests.models.gemma_model import ensure_gemma

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("gemma")]

PROMPTS = (
    "The capital of France is",
    "def fib(n):\n    ",
    "Überall 日本語 and \U0001f600: ",
    "A list of " + ", ".join(f"item {n}" for n in range(170)) + ", and",  # longer than a window
)


@pytest.fixture(scope="module")
def gguf() -> Path:
    return ensure_gemma()


@pytest.fixture(scope="module")
def reference(gguf: Path) -> Any:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    return model.eval()


@pytest.fixture(scope="module")
def tokenizer(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(gguf, tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def model(gguf: Path) -> NativePass | TorchPass:
    return load_model(gguf, "float32", 2).model


def test_its_tokenizer_is_the_reference_s(gguf: Path, tokenizer: Tokenizer) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    for prompt in PROMPTS:
        assert tokenizer.encode(prompt, add_special=True) == theirs(prompt).input_ids


@pytest.mark.parametrize("prompt", PROMPTS)
def test_it_says_what_transformers_says(
    model: NativePass | TorchPass, reference: Any, tokenizer: Tokenizer, prompt: str
) -> None:
    ids = tokenizer.encode(prompt, add_special=True)
    tokens, gaps = reference_greedy(reference, ids, 12)
    driver = Driver(model)
    assert_greedy_equal(driver.greedy(driver.sequence(ids, room=12), 12), tokens, gaps)

"""The demo model in float32 against transformers, chunk by chunk, without an engine around it.

The engine's own test (tests/engine/test_goldens.py) has all fifty prompts in every regime.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from libs.demo.model import ensure_demo_model
from services.modelserver.herd.engine.native_pass import NativePass
from services.modelserver.herd.models.loader import load_model
from services.modelserver.tests.goldens import goldens
from services.modelserver.tests.models.factories import (
    Driver,
    assert_greedy_equal,
    reference_logits,
)


@pytest.fixture(scope="module")
def model() -> NativePass:
    model = load_model(ensure_demo_model(), "float32").model
    assert isinstance(model, NativePass)
    return model


def test_a_prompt_in_chunks_of_no_round_size_says_what_the_reference_says(
    model: NativePass,
) -> None:
    golden = next(golden for golden in goldens() if len(golden.prompt) > 100)
    driver = Driver(model)
    count = len(golden.tokens)
    tokens = driver.greedy(driver.sequence(golden.prompt, room=count), count, 37)
    assert_greedy_equal(tokens, golden.tokens, golden.gaps)


@pytest.mark.slow
def test_logits_are_near_transformers_own(model: NativePass) -> None:
    from transformers import AutoModelForCausalLM

    path = ensure_demo_model()
    reference: Any = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    prompt = goldens()[25].prompt
    driver = Driver(model)
    sequence = driver.sequence(prompt)
    ours = torch.cat([driver.forward([sequence.chunk(1, sample=True)]) for _ in prompt[:40]])
    theirs = reference_logits(reference, prompt[:40])
    torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=1e-4)

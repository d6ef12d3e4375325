"""Every family against Hugging Face's own model of it: the same greedy tokens in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from services.modelserver.herd.models.errors import UnsupportedModel
from services.modelserver.herd.models.loader import load_model
from services.modelserver.herd.models.read_config import config_from_hf
from services.modelserver.herd.models.source import iter_float32, open_source
from services.modelserver.tests.models.factories import (
    FAMILIES,
    Driver,
    assert_greedy_equal,
    load_tiny,
    prompt_of,
    reference_greedy,
    reference_logits,
    tiny_of,
)
from services.modelserver.tests.models.gguf_files import write_gguf

IN_GGUF = {"qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3"}
IN_GGUF["gemma3 with a stretched global rope"] = "gemma3"
IN_GGUF["mistral"] = "llama"  # what llama.cpp's converter calls it


@pytest.mark.parametrize("native", [True, False], ids=["native", "torch"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_the_reference(
    family: str, tied: bool, native: bool, tmp_path: Path
) -> None:
    """Prompts longer than a window, in chunks that begin and end within it."""
    reference = tiny_of(family, tie_word_embeddings=tied)
    reference.save_pretrained(tmp_path)
    driver = Driver(load_tiny(tmp_path, native=native))
    seen: set[int] = set()
    for length in (1, 31, 100):
        prompt = prompt_of(length)
        theirs, gaps = reference_greedy(reference, prompt, 24)
        assert_greedy_equal(driver.greedy(driver.sequence(prompt, room=24), 24), theirs, gaps)
        seen.update(theirs)
    assert len(seen) > 8, "a model that repeats one token proves nothing"


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_near_the_reference_at_every_position(family: str, tmp_path: Path) -> None:
    reference = tiny_of(family)
    reference.save_pretrained(tmp_path)
    driver = Driver(load_tiny(tmp_path))
    tokens = prompt_of(90)
    sequence = driver.sequence(tokens)
    ours = torch.cat([driver.forward([sequence.chunk(1, sample=True)]) for _ in tokens])
    theirs = reference_logits(reference, tokens)
    torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=1e-4)


@pytest.mark.parametrize("family", IN_GGUF)
def test_a_gguf_file_is_the_same_model_as_its_folder(family: str, tmp_path: Path) -> None:
    # GGUF files say nothing of the scale of Gemma's scores: it is the usual one.
    scale = {"query_pre_attn_scalar": 32} if "gemma3" in family else {}
    reference = tiny_of(family, **scale)
    reference.save_pretrained(tmp_path)
    path = write_gguf(tmp_path / "model.gguf", reference, architecture=IN_GGUF[family])
    folder = dict(iter_float32(open_source(tmp_path)))
    for name, tensor in iter_float32(open_source(path)):
        torch.testing.assert_close(tensor, folder.pop(name), atol=2e-6, rtol=0)
    assert not folder
    tokens = prompt_of(60)
    driver = Driver(load_model(path, "float32").model)
    ours = driver.forward([driver.sequence(tokens).chunk(60)])[0]
    theirs = reference_logits(reference, tokens)[-1]
    torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=1e-4)


RAW: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 12,
    "vocab_size": 99,
    "sliding_window": 512,
}


def test_gemma_s_older_configs_name_a_pattern_and_two_bases() -> None:
    config = config_from_hf(
        RAW
        | {
            "architectures": ["Gemma3ForCausalLM"],
            "sliding_window_pattern": 6,
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "query_pre_attn_scalar": 256,
        }
    )
    assert config.windows == ((512,) * 5 + (0,)) * 2
    assert (config.rope.theta, config.rope.factor) == (1e6, 8.0)
    assert config.local_rope is not None and config.local_rope.theta == 1e4
    assert config.attention_scale == 1 / 16
    assert config.tied


def test_qwen_has_no_window_unless_it_says_so() -> None:
    raw = RAW | {"architectures": ["Qwen2ForCausalLM"], "max_window_layers": 10}
    assert config_from_hf(raw).windows == ()
    windows = config_from_hf(raw | {"use_sliding_window": True}).windows
    assert windows == (0,) * 10 + (512,) * 2


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"hidden_activation": "gelu"}, "gelu is not supported"),
    ],
)
def test_an_option_of_a_family_without_code_here_is_named(
    changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        config_from_hf(RAW | {"architectures": ["Gemma3ForCausalLM"]} | changes)


def test_all_families_are_named_to_who_brings_another() -> None:
    names = "Gemma3ForCausalLM, LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3"
    with pytest.raises(UnsupportedModel, match=names):
        config_from_hf(RAW | {"architectures": ["MambaForCausalLM"]})

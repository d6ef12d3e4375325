"""Weight files: what is read, what is refused, and that GGUF and safetensors are one model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from services.modelserver.herd.models.digest import digest_source, layout_signature
from services.modelserver.herd.models.errors import BadWeights, ModelNotFound, UnsupportedModel
from services.modelserver.herd.models.loader import load_model
from services.modelserver.herd.models.read_config import config_from_folder, config_from_hf
from services.modelserver.herd.models.source import check_complete, iter_float32, open_source
from services.modelserver.tests.models.factories import (
    Driver,
    load_tiny,
    prompt_of,
    reference_logits,
    save_tiny,
)
from services.modelserver.tests.models.gguf_files import write_gguf

Tensors = dict[str, torch.Tensor]
Q = "model.layers.1.self_attn.q_proj.weight"


def rewrite(folder: Path, change: Callable[[Tensors], object]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def rewrite_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


class TestRefusals:
    @pytest.mark.parametrize(
        "change",
        [
            lambda t: t.pop(Q),
            lambda t: t.update({Q: t[Q][:, :-1].contiguous()}),
            lambda t: t.update({Q: t[Q].T.contiguous()[:7]}),
            lambda t: t.update({Q.replace("weight", "bias"): torch.zeros(48)}),
            lambda t: t.update({Q: t[Q].to(torch.int8)}),
        ],
        ids=["missing", "narrow", "wrong shape", "unexpected", "not a float"],
    )
    def test_a_tensor_that_is_not_as_promised_is_named(
        self, change: Callable[[Tensors], object], tmp_path: Path
    ) -> None:
        save_tiny(tmp_path)
        rewrite(tmp_path, change)
        with pytest.raises(BadWeights, match=r"model\.layers\.1\.self_attn\.q_proj"):
            load_model(tmp_path)

    def test_a_tensor_in_two_shards(self, tmp_path: Path) -> None:
        save_tiny(tmp_path).save_pretrained(tmp_path, max_shard_size="50KB")
        (tmp_path / "model.safetensors").unlink(missing_ok=True)
        first, second, *_ = sorted(tmp_path.glob("*.safetensors"))
        tensors = load_file(first)
        name = next(iter(tensors))
        save_file(load_file(second) | {name: tensors[name]}, second)
        with pytest.raises(BadWeights, match=name):
            open_source(tmp_path)

    def test_a_shard_that_is_not_there(self, tmp_path: Path) -> None:
        save_tiny(tmp_path).save_pretrained(tmp_path, max_shard_size="50KB")
        lost = sorted(tmp_path.glob("model-*.safetensors"))[0]
        lost.unlink()
        with pytest.raises(BadWeights, match=lost.name):
            open_source(tmp_path)

    @pytest.mark.parametrize("name", ["model.safetensors", "model.gguf"])
    def test_a_damaged_file(self, name: str, tmp_path: Path) -> None:
        save_tiny(tmp_path)
        (tmp_path / name).write_bytes(b"\x07" * 100)
        with pytest.raises(BadWeights, match=name):
            open_source(tmp_path / name if name.endswith("gguf") else tmp_path)

    def test_a_folder_without_a_config_or_weights(self, tmp_path: Path) -> None:
        with pytest.raises(ModelNotFound, match=r"config\.json"):
            open_source(tmp_path)
        save_tiny(tmp_path)
        (tmp_path / "model.safetensors").unlink()
        with pytest.raises(ModelNotFound, match=r"model\.safetensors"):
            open_source(tmp_path)

    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"architectures": ["MambaForCausalLM"]}, r"MambaForCausalLM.*LlamaForCausalLM"),
            ({"architectures": None, "model_type": "bert"}, "bert"),
            ({"attention_bias": True}, "attention_bias"),
            ({"hidden_act": "gelu"}, "gelu"),
            ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}}, "yarn"),
            ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ],
    )
    def test_a_model_without_code_here_is_named(
        self, changes: dict[str, Any], named: str, tmp_path: Path
    ) -> None:
        save_tiny(tmp_path)
        rewrite_config(tmp_path, **changes)
        with pytest.raises(UnsupportedModel, match=named):
            config_from_folder(tmp_path)

    def test_a_config_that_is_not_json(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{")
        with pytest.raises(BadWeights, match=r"config\.json"):
            config_from_folder(tmp_path)


RAW: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 99,
    "eos_token_id": 7,
}


class TestConfig:
    def test_reads_the_older_rope_fields(self) -> None:
        scaling = {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        config = config_from_hf(RAW | {"rope_theta": 5e5, "rope_scaling": scaling})
        assert (config.rope.kind, config.rope.theta, config.rope.factor) == ("llama3", 5e5, 8.0)
        assert config.kv_heads == 4
        assert config.head_dim == 16

    def test_the_generation_configs_end_tokens_win(self) -> None:
        assert config_from_hf(RAW).eos_ids == (7,)
        assert config_from_hf(RAW, {"eos_token_id": [3, 4]}).eos_ids == (3, 4)

    @pytest.mark.parametrize("lost", ["hidden_size", "vocab_size", "num_hidden_layers"])
    def test_a_missing_field_is_named(self, lost: str) -> None:
        with pytest.raises(BadWeights, match=lost):
            config_from_hf({k: v for k, v in RAW.items() if k != lost})

    def test_heads_must_divide(self) -> None:
        with pytest.raises(BadWeights, match="KV heads"):
            config_from_hf(RAW | {"num_key_value_heads": 3})


class TestGguf:
    @pytest.mark.parametrize("tied", [True, False])
    def test_a_gguf_file_is_the_same_model_as_its_folder(self, tied: bool, tmp_path: Path) -> None:
        reference = save_tiny(tmp_path, tie_word_embeddings=tied)
        path = write_gguf(tmp_path / "model.gguf", reference)
        assert open_source(path).config == open_source(tmp_path).config
        folder = dict(iter_float32(open_source(tmp_path)))
        for name, tensor in iter_float32(open_source(path)):
            assert torch.equal(tensor, folder.pop(name)), name
        assert not folder

    def test_quantized_tensors_load_near_their_source(self, tmp_path: Path) -> None:
        reference = save_tiny(tmp_path, hidden_size=64, num_attention_heads=4, intermediate_size=96)
        path = write_gguf(
            tmp_path / "model.gguf", reference, quantize=gguf.GGMLQuantizationType.Q8_0
        )
        tokens = prompt_of(60)
        driver = Driver(load_model(path, "float32").model)
        ours = driver.forward([driver.sequence(tokens).chunk(60)])[0]
        theirs = reference_logits(reference, tokens)[-1]
        assert torch.nn.functional.cosine_similarity(ours, theirs, dim=0) > 0.995

    def test_rope_factors_stand_for_llama3_scaling(self, tmp_path: Path) -> None:
        rope = {
            "rope_type": "llama3",
            "rope_theta": 10_000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
        reference = save_tiny(tmp_path, rope_parameters=rope)
        plain = 1.0 / 10_000.0 ** (torch.arange(0, 32, 2) / 32)
        factors = plain / reference.model.rotary_emb.inv_freq
        path = write_gguf(tmp_path / "model.gguf", reference, rope_factors=factors)
        tokens = prompt_of(120)
        driver = Driver(load_model(path, "float32").model)
        ours = driver.forward([driver.sequence(tokens).chunk(120)])[0]
        theirs = reference_logits(reference, tokens)[-1]
        torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-4)

    def test_a_tensor_of_another_architecture_is_named(self, tmp_path: Path) -> None:
        path = write_gguf(tmp_path / "m.gguf", save_tiny(tmp_path), extra="blk.0.attn_qkv.weight")
        with pytest.raises(BadWeights, match=r"blk\.0\.attn_qkv"):
            open_source(path)

    def test_an_unknown_architecture_is_named(self, tmp_path: Path) -> None:
        path = write_gguf(tmp_path / "m.gguf", save_tiny(tmp_path), architecture="rwkv6")
        with pytest.raises(UnsupportedModel, match="rwkv6"):
            open_source(path)


class TestDigest:
    def test_the_same_bytes_in_other_shards_are_the_same_version(self, tmp_path: Path) -> None:
        reference = save_tiny(tmp_path / "whole")
        reference.save_pretrained(tmp_path / "shards", max_shard_size="50KB")
        whole, shards = (digest_source(open_source(tmp_path / n)) for n in ("whole", "shards"))
        assert whole == shards
        assert len(whole.root) == 32
        assert layout_signature(whole) == layout_signature(shards)

    def test_one_changed_bit_changes_its_tensor_and_the_root_only(self, tmp_path: Path) -> None:
        save_tiny(tmp_path)
        before = digest_source(open_source(tmp_path))

        def flip(tensors: Tensors) -> None:
            tensors[Q].view(torch.int32)[0, 0] ^= 1

        rewrite(tmp_path, flip)
        after = digest_source(open_source(tmp_path), threads=3)
        assert before.root != after.root
        assert before.config == after.config
        assert [n for n in after.tensors if after.tensors[n] != before.tensors[n]] == [Q]
        assert layout_signature(after) == layout_signature(before)

    def test_the_config_counts(self, tmp_path: Path) -> None:
        save_tiny(tmp_path)
        before = digest_source(open_source(tmp_path))
        rewrite_config(tmp_path, rms_norm_eps=1e-3)
        after = digest_source(open_source(tmp_path))
        assert after.tensors == before.tensors
        assert after.root != before.root

    def test_stored_precision_counts(self, tmp_path: Path) -> None:
        reference = save_tiny(tmp_path / "f32")
        reference.bfloat16().save_pretrained(tmp_path / "bf16")
        full, half = (digest_source(open_source(tmp_path / n)) for n in ("f32", "bf16"))
        assert full.root != half.root
        assert layout_signature(full) != layout_signature(half)
        assert full.stored_bytes == 2 * half.stored_bytes


def test_a_tied_model_may_store_its_head_again(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    plain = load_tiny(tmp_path)
    rewrite(
        tmp_path, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()})
    )
    check_complete(open_source(tmp_path))
    assert load_tiny(tmp_path).config == plain.config

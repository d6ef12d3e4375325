"""The five services as processes beside a real etcd, over a model of random weights."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from libs.testing.etcd import EtcdProcess

SERVICES = ("router", "scheduler", "modelserver", "kvstore", "leap")
STOP_WITHIN_S = 30.0

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SHAPES = {
    "model.embed_tokens.weight": (64, 32),
    "model.norm.weight": (32,),
    "model.layers.0.input_layernorm.weight": (32,),
    "model.layers.0.post_attention_layernorm.weight": (32,),
    "model.layers.0.self_attn.q_proj.weight": (32, 32),
    "model.layers.0.self_attn.k_proj.weight": (16, 32),
    "model.layers.0.self_attn.v_proj.weight": (16, 32),
    "model.layers.0.self_attn.o_proj.weight": (32, 32),
    "model.layers.0.mlp.gate_proj.weight": (48, 32),
    "model.layers.0.mlp.up_proj.weight": (48, 32),
    "model.layers.0.mlp.down_proj.weight": (32, 48),
}


def save_model(folder: Path) -> None:
    """A Llama of one small layer in one safetensors file, and a tokenizer of three tokens."""
    folder.mkdir(parents=True)
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    Tokenizer(WordLevel(vocab=vocab, unk_token="<unk>")).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    save_file(tensors, folder / "model.safetensors")


def command(service: str, endpoint: str, folder: Path) -> list[str]:
    flags = ["--etcd", endpoint, "--port", "0", "--member", service, "--log-level", "warning"]
    match service:
        case "router":
            flags += ["--http-port", "0", "--no-auth", "--objects", str(folder / "objects")]
        case "scheduler":
            flags += ["--objects", str(folder / "objects")]
        case "modelserver":
            flags += ["--model", str(folder / "model"), "--model-name", "tiny", "--threads", "1"]
            flags += ["--precision", "float32", "--kv-bytes", "4MiB"]
    return [sys.executable, "-m", f"services.{service}.main", *flags]


@contextlib.contextmanager
def running(folder: Path) -> Iterator[EtcdProcess]:
    """All five, started and registering in the etcd that is yielded; each must end with 0."""
    save_model(folder / "model")
    with EtcdProcess() as etcd, contextlib.ExitStack() as stack:
        processes = {}
        for service in SERVICES:
            process = subprocess.Popen(command(service, etcd.endpoint, folder))
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes[service] = process
        yield etcd
        for process in processes.values():
            process.terminate()
        codes = {name: process.wait(STOP_WITHIN_S) for name, process in processes.items()}
        assert codes == dict.fromkeys(SERVICES, 0), codes

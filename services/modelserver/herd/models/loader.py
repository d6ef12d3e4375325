"""load_model: from a path to a model that can run, with the digests that name it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from services.modelserver.herd.engine.precision import Precision, choose_precision
from services.modelserver.herd.models.config import ModelConfig
from services.modelserver.herd.models.digest import ModelDigests, digest_source
from services.modelserver.herd.models.llama import LlamaModel
from services.modelserver.herd.models.source import check_complete, open_source


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run.

    ``digests.root`` names the weight version; ``numerics_signature`` names how its numbers are
    computed. Two servers whose root and signature agree may share KV.
    """

    path: Path
    config: ModelConfig
    model: LlamaModel
    precision: Precision
    kv_dtype: torch.dtype
    digests: ModelDigests
    numerics_signature: str


def load_model(path: Path, precision: str = "auto", threads: int = 1) -> LoadedModel:
    """Check, digest and pack the weights at ``path``.

    ``threads`` becomes torch's thread count for this whole process. Raises ModelError.
    """
    torch.set_num_threads(threads)
    chosen = choose_precision(precision)
    source = open_source(path)
    check_complete(source)
    digests = digest_source(source, threads)
    model = LlamaModel(source.config, lambda name: source.tensors[name].load(), chosen)
    kv_dtype = torch.float32
    return LoadedModel(
        path=path,
        config=source.config,
        model=model,
        precision=chosen,
        kv_dtype=kv_dtype,
        digests=digests,
        numerics_signature=numerics_signature(source.config, chosen, kv_dtype),
    )


def numerics_signature(config: ModelConfig, precision: Precision, kv_dtype: torch.dtype) -> str:
    """Everything that changes the stored keys and values besides the weights themselves.

    Part of every KV key. Thread counts and CPU kinds are not in it: they change rounding only.
    """
    activations = "int8-row" if precision == "int8" else "float32"
    kv = str(kv_dtype).removeprefix("torch.")
    rope = config.rope
    return (
        f"num1:w={precision}:a={activations}:kv={kv}:"
        f"rope={rope.kind},{rope.theta:g},{rope.factor:g}"
    )

"""load_model: from a path to a model that can run, with the digests that name it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from services.modelserver.herd.engine.native_pass import NativePass, can_run
from services.modelserver.herd.engine.precision import Precision, choose_precision, kv_dtype
from services.modelserver.herd.engine.torch_pass import TorchPass
from services.modelserver.herd.kernels.native import native_library
from services.modelserver.herd.models.config import ModelConfig
from services.modelserver.herd.models.decoder import Decoder, Fetch
from services.modelserver.herd.models.digest import ModelDigests, digest_source
from services.modelserver.herd.models.families import family_named
from services.modelserver.herd.models.source import check_complete, open_source


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run.

    ``digests.root`` names the weight version; ``numerics_signature`` names how its numbers are
    computed. Two servers whose root and signature agree may share KV.
    """

    path: Path
    config: ModelConfig
    model: NativePass | TorchPass
    precision: Precision
    kv_dtype: torch.dtype
    digests: ModelDigests
    numerics_signature: str


def load_model(
    path: Path, precision: str = "auto", threads: int = 1, *, native: bool = True
) -> LoadedModel:
    """Check, digest and pack the weights at ``path``. ``native=False`` keeps to torch's operators.

    ``threads`` becomes torch's thread count for this whole process. Raises ModelError.
    """
    torch.set_num_threads(threads)
    chosen = choose_precision(precision)
    source = open_source(path)
    check_complete(source)
    digests = digest_source(source, threads)
    decoder = decoder_of(source.config, lambda name: source.tensors[name].load())
    return LoadedModel(
        path=path,
        config=source.config,
        model=make_pass(decoder, chosen, threads, native=native),
        precision=chosen,
        kv_dtype=kv_dtype(chosen),
        digests=digests,
        numerics_signature=numerics_signature(source.config, chosen, kv_dtype(chosen)),
    )


def decoder_of(config: ModelConfig, fetch: Fetch) -> Decoder:
    """By the family that the config names."""
    return family_named(config.architecture).decoder(config, fetch)


def make_pass(
    decoder: Decoder, precision: Precision, threads: int, *, native: bool = True
) -> NativePass | TorchPass:
    """The compiled pass where there is a compiler and the kernels cover the model, else torch's."""
    library = native_library() if native and can_run(decoder) else None
    if library is None:
        return TorchPass(decoder, precision)
    return NativePass(library, decoder, precision, threads)


def numerics_signature(config: ModelConfig, precision: Precision, dtype: torch.dtype) -> str:
    """Everything that changes the stored keys and values besides the weights themselves.

    Part of every KV key. Thread counts and CPU kinds are not in it: they change rounding only.
    """
    activations = "int8-group32" if precision == "int8" else "float32"
    kv = str(dtype).removeprefix("torch.")
    rope = config.rope
    return (
        f"num2:w={precision}:a={activations}:kv={kv}:"
        f"rope={rope.kind},{rope.theta:g},{rope.factor:g}"
    )

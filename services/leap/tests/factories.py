"""Manifests for the tests."""

from __future__ import annotations

import dataclasses

from impala.leap.v1 import leap_pb2
from libs.hashing import weights_root
from services.leap.core.manifest import Manifest, Tensor


def digest_of(name: int | str) -> bytes:
    return str(name).encode().rjust(32, b"\0")


def tensors_of(name: int | str, count: int = 2) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(f"layer.{i:05d}", "F32", (2, i + 1), digest_of(f"{name}-{i}")) for i in range(count)
    )


def manifest_of(name: int | str, model: str = "smollm2-135m", tensors: int = 2) -> Manifest:
    """A valid manifest; equal names make equal digests."""
    parts = tensors_of(name, tensors)
    return Manifest(
        model=model,
        digest=weights_root(digest_of("config"), {part.name: part.digest for part in parts}),
        config_digest=digest_of("config"),
        layout_signature="layout",
        tensors=parts,
        source=f"somewhere/{name}",
        label=str(name),
        bytes=1234,
    )


def message_of(manifest: Manifest) -> leap_pb2.Manifest:
    fields = {
        field.name: getattr(manifest, field.name)
        for field in dataclasses.fields(manifest)
        if field.name != "tensors"
    }
    tensors = [
        leap_pb2.TensorDigest(name=t.name, dtype=t.dtype, shape=t.shape, digest=t.digest)
        for t in manifest.tensors
    ]
    return leap_pb2.Manifest(tensors=tensors, **fields)

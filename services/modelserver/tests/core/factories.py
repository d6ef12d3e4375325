"""Sequences and batchers for tests."""

import zlib

from libs.hashing import KvNamespace, account_salt
from services.modelserver.herd.core.batcher import Batcher, BatcherConfig
from services.modelserver.herd.core.sequence import Limits, Sequence

SALT = account_salt("tests")
NAMESPACE = KvNamespace(b"model", b"version", "", "float32", "reference").digest


def stream(name: str, length: int) -> list[int]:
    """The first tokens of a stream that is all its own."""
    base = zlib.crc32(name.encode()) % 100_000 * 10_000
    return list(range(base, base + length))


def prompt_of(spec: str) -> list[int]:
    """`x:64+y:6` is 64 tokens of stream x, then 6 of stream y."""
    tokens: list[int] = []
    for part in spec.split("+"):
        name, _, length = part.partition(":")
        tokens += stream(name, int(length))
    return tokens


def make_sequence(
    seq_id: str,
    prompt: list[int] | str,
    max_tokens: int = 4,
    *,
    request_id: str | None = None,
    priority: int = 0,
    limits: Limits | None = None,
    salt: bytes = SALT,
    namespace: bytes = NAMESPACE,
) -> Sequence:
    """A sequence; its request has its name unless told otherwise."""
    return Sequence(
        seq_id,
        request_id or seq_id,
        prompt_of(prompt) if isinstance(prompt, str) else prompt,
        limits or Limits(max_tokens),
        salt=salt,
        namespace=namespace,
        priority=priority,
    )


def make_batcher(
    num_blocks: int = 64,
    max_batch_tokens: int = 64,
    max_seqs: int = 8,
    *,
    prefill_chunk: int | None = None,
    watermark_blocks: int | None = None,
    external_tier: bool = False,
) -> Batcher:
    """A batcher small enough to follow by hand."""
    return Batcher(
        BatcherConfig(
            num_blocks,
            max_batch_tokens,
            max_seqs,
            prefill_chunk=prefill_chunk,
            watermark_blocks=watermark_blocks,
            external_tier=external_tier,
        )
    )

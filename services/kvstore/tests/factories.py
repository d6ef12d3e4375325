"""Blocks for the tests."""

from __future__ import annotations

from impala.kvstore.v1 import kvstore_pb2
from libs.hashing import checksum
from services.kvstore.core.block import Block, Header

LAYOUT = "float32/2x3x4"
PAYLOAD_BYTES = 1000


def key_of(name: int | str) -> bytes:
    return str(name).encode().rjust(16, b"\0")


def block_of(name: int | str, *, size: int = PAYLOAD_BYTES, layout: str = LAYOUT) -> Block:
    """A whole block; equal names make equal blocks."""
    payload = (str(name).encode() * size)[:size]
    header = Header(
        layout=layout,
        tokens=1,
        payload_bytes=size,
        checksum=checksum(payload),
        token_ids=b"\1\0\0\0",
        parent_key=b"",
    )
    return Block(key_of(name), header, payload)


def message_of(block: Block) -> kvstore_pb2.Block:
    header = block.header
    return kvstore_pb2.Block(
        key=block.key,
        header=kvstore_pb2.BlockHeader(
            layout=header.layout,
            tokens=header.tokens,
            payload_bytes=header.payload_bytes,
            checksum=header.checksum,
            token_ids=header.token_ids,
            parent_key=header.parent_key,
        ),
        payload=block.payload,
    )

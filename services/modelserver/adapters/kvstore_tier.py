"""The kvstore as the pool's lower tier.

Stores are best effort: a bounded buffer, one upload at a time, dropped when the buffer is full or
no kvstore answers. Loads are verified here (layout, length, checksum) and their token ids once more
by the batcher; whatever does not match is a miss and counted.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from hashlib import blake2b

import grpc

from impala.kvstore.v1 import kvstore_pb2, kvstore_pb2_grpc
from libs.cluster.members import Members
from libs.errors import ImpalaError
from libs.hashing import checksum, pack
from libs.obs import METRICS, Metrics
from libs.rpc import ClientTls, call, connect, stream, upload
from services.modelserver.adapters.asked_together import AskedTogether
from services.modelserver.herd.core.plan import Lookup
from services.modelserver.herd.engine.step import FetchedBlock, StoredBlock

log = logging.getLogger(__name__)

_UPLOAD_BLOCKS = 32
_UPLOAD_TIMEOUT_S = 10.0
_FETCH_TIMEOUT_S = 2.0
_TOKEN_BYTES = 4
_LOOKUPS_A_CALL = 256
"""The contract allows 1024."""


class KvStoreTier:
    """Implements ports.LowerTier over the live kvstores of the cluster."""

    def __init__(
        self,
        members: Members,
        *,
        layout: str,
        block_bytes: int,
        buffer_bytes: int,
        tls: ClientTls | None = None,
        metrics: Metrics = METRICS,
    ) -> None:
        self.loaded_blocks = 0
        self.stored_blocks = 0
        self.refused_blocks = 0
        self._members = members
        self._layout = layout
        self._block_bytes = block_bytes
        self._buffer_blocks = buffer_bytes // block_bytes
        self._tls = tls
        self._buffer: deque[StoredBlock] = deque()
        self._wake = asyncio.Event()
        self._stores: dict[str, tuple[grpc.aio.Channel, kvstore_pb2_grpc.KvStoreAsyncStub]] = {}
        self._held = AskedTogether(self._count_held, _LOOKUPS_A_CALL)
        self._count = metrics.counter(
            "impala_modelserver_kv_tier_blocks",
            "KV blocks moved to or from the kvstore.",
            ("what",),
        )

    def offer(self, blocks: Sequence[StoredBlock]) -> None:
        """Keep for upload what the buffer has room for; nothing without a kvstore to send it to."""
        if not self._members.current():
            return
        room = max(0, self._buffer_blocks - len(self._buffer))
        self._buffer.extend(blocks[:room])
        self._count.labels("store_dropped").inc(max(0, len(blocks) - room))
        self._wake.set()

    async def fetch(self, lookup: Lookup) -> list[FetchedBlock]:
        """The leading blocks that are held and whole."""
        held = await self._held(lookup) if self._members.current() else 0
        stub = self._stub() if held else None
        if stub is None:
            return []
        request = kvstore_pb2.GetRequest(
            keys=pack(lookup.keys[:held]), prefix_only=True, layout=self._layout
        )
        found: list[FetchedBlock] = []
        async for answer in stream(stub.Get, request, timeout_s=_FETCH_TIMEOUT_S):
            block = self._verified(answer, len(found), lookup)
            if block is None:
                self.refused_blocks += 1
                self._count.labels("refused").inc()
                break
            found.append(block)
        self.loaded_blocks += len(found)
        self._count.labels("loaded").inc(len(found))
        return found

    async def _count_held(self, lookups: Sequence[Lookup]) -> Sequence[int]:
        """Of each chain, how many blocks from its front are held. Most steps extend what nobody
        has: they are told so many to a call."""
        stub = self._stub()
        if stub is None:
            return [0] * len(lookups)
        request = kvstore_pb2.ExistsRequest(
            chains=[kvstore_pb2.KeyList(keys=pack(lookup.keys)) for lookup in lookups],
            layout=self._layout,
        )
        answer = await call(stub.Exists, request, timeout_s=_FETCH_TIMEOUT_S)
        return [chain.blocks for chain in answer.chains]

    async def run(self) -> None:
        """Uploads until cancelled."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._buffer:
                    await self._upload_some()
        finally:
            await self._held.aclose()
            for channel, _ in self._stores.values():
                await channel.close(None)

    async def _upload_some(self) -> None:
        count = min(_UPLOAD_BLOCKS, len(self._buffer))
        batch = [self._buffer.popleft() for _ in range(count)]
        stub = self._stub()
        if stub is None:
            return
        try:
            answer = await upload(stub.Put, self._puts(batch), timeout_s=_UPLOAD_TIMEOUT_S)
        except ImpalaError as error:
            self._count.labels("store_failed").inc(count)
            log.warning("KV blocks not stored: %s", error)
            return
        self.stored_blocks += answer.stored
        self._count.labels("stored").inc(answer.stored)

    async def _puts(self, batch: Sequence[StoredBlock]) -> AsyncIterator[kvstore_pb2.PutRequest]:
        for block in batch:
            payload = bytes(block.payload)
            header = kvstore_pb2.BlockHeader(
                layout=self._layout,
                tokens=len(block.tokens),
                payload_bytes=len(payload),
                checksum=checksum(payload),
                token_ids=_encode_tokens(block.tokens),
                parent_key=block.parent or b"",
            )
            stored = kvstore_pb2.Block(key=block.key, header=header, payload=payload)
            yield kvstore_pb2.PutRequest(block=stored)

    def _verified(
        self, answer: kvstore_pb2.GetResponse, expected: int, lookup: Lookup
    ) -> FetchedBlock | None:
        header = answer.header
        whole = (
            answer.index == expected
            and expected < len(lookup.keys)
            and answer.key == lookup.keys[expected]
            and header.layout == self._layout
            and len(answer.inline) == header.payload_bytes == self._block_bytes
            and len(header.token_ids) == _TOKEN_BYTES * header.tokens
            and checksum(answer.inline) == header.checksum
        )
        if not whole:
            return None
        return FetchedBlock(_decode_tokens(header.token_ids), answer.inline)

    def _stub(self) -> "kvstore_pb2_grpc.KvStoreAsyncStub | None":
        """The kvstore that holds this model's blocks: one for all, chosen by rendezvous on the
        layout, because a chain must lie in one place to be found by its prefix."""
        members = self._members.current()
        if not members:
            return None
        seed = self._layout.encode()
        chosen = max(members, key=lambda m: blake2b(seed + m.encode(), digest_size=8).digest())
        address = str(members[chosen].info["address"])
        if address not in self._stores:
            channel = connect(address, self._tls)
            self._stores[address] = channel, kvstore_pb2_grpc.KvStoreStub(channel)
        return self._stores[address][1]


def _encode_tokens(tokens: Sequence[int]) -> bytes:
    return b"".join(token.to_bytes(_TOKEN_BYTES, "little") for token in tokens)


def _decode_tokens(packed: bytes) -> tuple[int, ...]:
    return tuple(
        int.from_bytes(packed[at : at + _TOKEN_BYTES], "little")
        for at in range(0, len(packed), _TOKEN_BYTES)
    )

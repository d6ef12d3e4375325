"""The KvStore contract over gRPC: check, delegate, fill."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any

from impala.kvstore.v1 import kvstore_pb2, kvstore_pb2_grpc
from libs.errors import InvalidArgument
from services.kvstore.app import KvStoreApp
from services.kvstore.core.block import Block, Header, split_keys
from services.kvstore.core.store import PutOutcome

MAX_KEYS = 65_536
MAX_CHAINS = 1024
TIER = "memory"


class KvStoreApi(kvstore_pb2_grpc.KvStoreServicer):
    """Serves one app. Tickets are inline; other transports a client accepts are passed over."""

    def __init__(self, app: KvStoreApp, incarnation: str) -> None:
        self._app = app
        self._incarnation = incarnation

    async def Put(
        self, request_iterator: AsyncIterator[kvstore_pb2.PutRequest], context: Any
    ) -> kvstore_pb2.PutResponse:
        counts = dict.fromkeys(PutOutcome, 0)
        async for request in request_iterator:
            block = _block_of(request.block)
            block.check()
            counts[self._app.put(block, _lease_of(request.lease_s))] += 1
        return kvstore_pb2.PutResponse(
            stored=counts[PutOutcome.STORED],
            present=counts[PutOutcome.PRESENT],
            refused=counts[PutOutcome.REFUSED],
        )

    async def Get(
        self, request: kvstore_pb2.GetRequest, context: Any
    ) -> AsyncIterator[kvstore_pb2.GetResponse]:
        keys = split_keys(request.keys, "keys", limit=MAX_KEYS)
        if not keys:
            raise InvalidArgument("keys is empty; ask for at least one.", "NO_KEYS", "keys")
        for index, block in self._app.fetch(keys, request.layout, prefix_only=request.prefix_only):
            yield kvstore_pb2.GetResponse(
                index=index,
                key=block.key,
                header=_header_message(block.header),
                inline=block.payload,
                tier=TIER,
            )

    async def Exists(
        self, request: kvstore_pb2.ExistsRequest, context: Any
    ) -> kvstore_pb2.ExistsResponse:
        if not 1 <= len(request.chains) <= MAX_CHAINS:
            raise InvalidArgument(
                f"chains has {len(request.chains)} entries; 1 to {MAX_CHAINS} are allowed.",
                "BAD_CHAIN_COUNT",
                "chains",
            )
        response = kvstore_pb2.ExistsResponse()
        for number, chain in enumerate(request.chains):
            keys = split_keys(chain.keys, f"chains[{number}].keys", limit=MAX_KEYS)
            held = self._app.held_prefix(keys, request.layout)
            response.chains.add(blocks=held, tiers=[TIER] * held)
        return response

    async def Touch(
        self, request: kvstore_pb2.TouchRequest, context: Any
    ) -> kvstore_pb2.TouchResponse:
        keys = split_keys(request.keys, "keys", limit=MAX_KEYS)
        touched = self._app.touch(keys, _lease_of(request.lease_s))
        return kvstore_pb2.TouchResponse(touched=touched)

    async def Delete(
        self, request: kvstore_pb2.DeleteRequest, context: Any
    ) -> kvstore_pb2.DeleteResponse:
        keys = split_keys(request.keys, "keys", limit=MAX_KEYS)
        return kvstore_pb2.DeleteResponse(deleted=self._app.delete(keys))

    async def Stats(
        self, request: kvstore_pb2.StatsRequest, context: Any
    ) -> kvstore_pb2.StatsResponse:
        store, counters = self._app.store, self._app.store.counters
        tier = kvstore_pb2.TierStats(
            tier=TIER,
            limit_bytes=store.limit_bytes,
            used_bytes=store.used_bytes,
            blocks=len(store),
            evicted_blocks=counters.evicted,
        )
        return kvstore_pb2.StatsResponse(
            tiers=[tier],
            hits=counters.hits,
            misses=counters.misses,
            puts=counters.puts,
            corrupt=counters.corrupt,
            refused=counters.refused,
            incarnation=self._incarnation,
        )


def _block_of(message: kvstore_pb2.Block) -> Block:
    header = message.header
    return Block(
        message.key,
        Header(
            layout=header.layout,
            tokens=header.tokens,
            payload_bytes=header.payload_bytes,
            checksum=header.checksum,
            token_ids=header.token_ids,
            parent_key=header.parent_key,
        ),
        message.payload,
    )


def _header_message(header: Header) -> kvstore_pb2.BlockHeader:
    return kvstore_pb2.BlockHeader(
        layout=header.layout,
        tokens=header.tokens,
        payload_bytes=header.payload_bytes,
        checksum=header.checksum,
        token_ids=header.token_ids,
        parent_key=header.parent_key,
    )


def _lease_of(seconds: float) -> float:
    if not math.isfinite(seconds) or seconds < 0:
        raise InvalidArgument(
            f"lease_s is {seconds}; it must be a finite number >= 0.", "BAD_LEASE", "lease_s"
        )
    return seconds

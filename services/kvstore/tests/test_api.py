"""The contract over real gRPC, in one process."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from impala.kvstore.v1 import kvstore_pb2, kvstore_pb2_grpc
from libs.clock import ManualClock
from libs.errors import InvalidArgument
from libs.hashing import pack
from libs.obs import Metrics
from libs.rpc import call, stream, upload
from libs.testing.rpc import connected, serving
from services.kvstore.api import KvStoreApi
from services.kvstore.app import KvStoreApp
from services.kvstore.core.block import Block
from services.kvstore.core.store import OVERHEAD_BYTES, BlockStore
from services.kvstore.tests.factories import LAYOUT, block_of, key_of, message_of

ADD = kvstore_pb2_grpc.add_KvStoreServicer_to_server


class Bench:
    """A served store and a stub of it."""

    def __init__(self, app: KvStoreApp, stub: Any, metrics: Metrics) -> None:
        self.app, self.stub, self.metrics = app, stub, metrics

    async def put(self, *blocks: Block, lease_s: float = 0.0) -> Any:
        async def requests() -> AsyncIterator[kvstore_pb2.PutRequest]:
            for block in blocks:
                yield kvstore_pb2.PutRequest(block=message_of(block), lease_s=lease_s)

        return await upload(self.stub.Put, requests(), timeout_s=10)

    async def get(self, names: Sequence[int | str], **fields: Any) -> list[Any]:
        request = kvstore_pb2.GetRequest(keys=pack(map(key_of, names)), **fields)
        return [answer async for answer in stream(self.stub.Get, request, timeout_s=10)]

    async def stats(self) -> Any:
        return await call(self.stub.Stats, kvstore_pb2.StatsRequest(), timeout_s=10)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    metrics = Metrics()
    app = KvStoreApp(BlockStore(32 << 20), ManualClock(), metrics)
    async with serving((ADD, KvStoreApi(app, "life-1"))) as rpc, connected(rpc) as channel:
        yield Bench(app, kvstore_pb2_grpc.KvStoreStub(channel), metrics)
    app.store.check_integrity()


async def test_blocks_come_back_in_the_order_asked_with_their_position(bench: Bench) -> None:
    put = await bench.put(block_of("a"), block_of("b"), block_of("a"))
    assert (put.stored, put.present, put.refused) == (2, 1, 0)
    answers = await bench.get(["b", "absent", "a"], layout=LAYOUT)
    assert [(each.index, each.key) for each in answers] == [(0, key_of("b")), (2, key_of("a"))]
    assert answers[1].inline == block_of("a").payload
    assert answers[1].header == message_of(block_of("a")).header
    assert {each.tier for each in answers} == {"memory"}


async def test_a_prefix_stops_at_the_first_miss(bench: Bench) -> None:
    await bench.put(block_of(1), block_of(2), block_of(4))
    answers = await bench.get([1, 2, 3, 4], prefix_only=True)
    assert [each.index for each in answers] == [0, 1]


async def test_a_fetched_chain_is_left_to_be_evicted_from_its_end(bench: Bench) -> None:
    await bench.put(block_of(1), block_of(2), block_of(3))
    await bench.get([1, 2, 3], prefix_only=True)
    room = bench.app.store.limit_bytes - bench.app.store.used_bytes - OVERHEAD_BYTES - 4
    await bench.put(block_of("filler", size=room + 1))
    assert [each.index for each in await bench.get([1, 2, 3])] == [0, 1]


async def test_transports_that_are_not_offered_are_passed_over(bench: Bench) -> None:
    await bench.put(block_of("a"))
    accepts = [kvstore_pb2.TRANSPORT_RDMA, kvstore_pb2.TRANSPORT_SHARED_MEMORY]
    [answer] = await bench.get(["a"], accepts=accepts)
    assert answer.WhichOneof("ticket") == "inline"


async def test_a_damaged_block_is_refused_and_the_others_are_stored(bench: Bench) -> None:
    damaged = dataclasses.replace(block_of("x"), payload=b"damaged")
    put = await bench.put(block_of("a"), damaged, block_of("b"))
    assert (put.stored, put.present, put.refused) == (2, 0, 1)
    assert await bench.get(["x"]) == []


async def test_a_malformed_block_names_the_field_and_keeps_what_came_before(bench: Bench) -> None:
    bad = dataclasses.replace(block_of("x"), key=b"short")
    with pytest.raises(InvalidArgument) as caught:
        await bench.put(block_of("a"), bad)
    assert (caught.value.reason, caught.value.field) == ("MALFORMED_BLOCK", "block.key")
    assert len(await bench.get(["a"])) == 1


@pytest.mark.parametrize("size", [3_900_000, 4_100_000, 20_000_000])
async def test_blocks_beyond_grpcs_default_limit_pass_both_ways(bench: Bench, size: int) -> None:
    put = await bench.put(block_of("big", size=size))
    assert put.stored == 1
    [answer] = await bench.get(["big"])
    assert answer.inline == block_of("big", size=size).payload


async def test_exists_answers_each_chain_with_its_held_prefix(bench: Bench) -> None:
    await bench.put(block_of(1), block_of(2), block_of(4))
    chains = [kvstore_pb2.KeyList(keys=pack(map(key_of, c))) for c in ([1, 2, 3, 4], [3], [4], [])]
    request = kvstore_pb2.ExistsRequest(chains=chains, layout=LAYOUT)
    answer = await call(bench.stub.Exists, request, timeout_s=10)
    assert [each.blocks for each in answer.chains] == [2, 0, 1, 0]
    assert list(answer.chains[0].tiers) == ["memory", "memory"]
    assert (await bench.stats()).hits == 0


async def test_touch_and_delete_tell_how_many_were_held(bench: Bench) -> None:
    await bench.put(block_of(1), block_of(2))
    keys = pack([key_of(1), key_of(2), key_of(3)])
    touched = await call(bench.stub.Touch, kvstore_pb2.TouchRequest(keys=keys), timeout_s=10)
    deleted = await call(bench.stub.Delete, kvstore_pb2.DeleteRequest(keys=keys), timeout_s=10)
    again = await call(bench.stub.Delete, kvstore_pb2.DeleteRequest(keys=keys), timeout_s=10)
    assert (touched.touched, deleted.deleted, again.deleted) == (2, 2, 0)


async def test_stats_and_metrics_count_what_happened(bench: Bench) -> None:
    await bench.put(block_of("a"), dataclasses.replace(block_of("x"), payload=b"damaged"))
    await bench.get(["a", "absent"])
    stats = await bench.stats()
    assert (stats.hits, stats.misses, stats.puts, stats.refused, stats.corrupt) == (1, 1, 1, 1, 0)
    [tier] = stats.tiers
    assert (tier.tier, tier.limit_bytes, tier.blocks) == ("memory", 32 << 20, 1)
    assert tier.used_bytes == bench.app.store.used_bytes
    assert stats.incarnation == "life-1"
    value = bench.metrics.registry.get_sample_value
    assert value("impala_kvstore_events", {"what": "hits"}) == 1
    assert value("impala_kvstore_blocks") == 1


@pytest.mark.parametrize(
    ("method", "request_", "field"),
    [
        ("Get", kvstore_pb2.GetRequest(), "keys"),
        ("Get", kvstore_pb2.GetRequest(keys=b"x" * 15), "keys"),
        ("Get", kvstore_pb2.GetRequest(keys=bytes(16 * 65_537)), "keys"),
        ("Exists", kvstore_pb2.ExistsRequest(), "chains"),
        (
            "Exists",
            kvstore_pb2.ExistsRequest(chains=[kvstore_pb2.KeyList()] * 1025),
            "chains",
        ),
        (
            "Exists",
            kvstore_pb2.ExistsRequest(chains=[kvstore_pb2.KeyList(keys=b"x")]),
            "chains[0].keys",
        ),
        ("Touch", kvstore_pb2.TouchRequest(keys=b"x"), "keys"),
        ("Touch", kvstore_pb2.TouchRequest(lease_s=-1.0), "lease_s"),
        ("Touch", kvstore_pb2.TouchRequest(lease_s=float("nan")), "lease_s"),
        ("Delete", kvstore_pb2.DeleteRequest(keys=b"x"), "keys"),
    ],
)
async def test_bad_requests_name_the_field(
    bench: Bench, method: str, request_: Any, field: str
) -> None:
    called = getattr(bench.stub, method)
    answer = (
        anext(stream(called, request_, timeout_s=10))
        if method == "Get"
        else call(called, request_, timeout_s=10)
    )
    with pytest.raises(InvalidArgument) as caught:
        await answer
    assert caught.value.field == field

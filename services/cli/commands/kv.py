"""impala kv: the shared tiers of the KV cache."""

from __future__ import annotations

from typing import Any

import typer
from google.protobuf.json_format import MessageToDict

from impala.kvstore.v1 import kvstore_pb2, kvstore_pb2_grpc
from libs.cluster.client import EtcdClient
from libs.cluster.members import Members
from libs.rpc import ClientTls, call, connect
from services.cli import options
from services.cli.cluster import AtEtcd, with_etcd
from services.cli.options import grouped
from services.cli.output import print_json, table

app = typer.Typer(help="The shared tiers of the KV cache.", no_args_is_help=True)

WITHIN_S = 5.0

Stats = kvstore_pb2.StatsResponse


@app.callback()
def kv() -> None:
    """The shared tiers of the KV cache."""


@app.command()
@grouped(cluster=AtEtcd)
def stats(
    cluster: AtEtcd,
    as_json: options.AsJson = False,
) -> int:
    """Show what every kvstore holds and what became of the look-ups."""
    etcd = cluster.found()
    found = with_etcd(etcd, lambda client: _ask_all(client, etcd.peers))
    if as_json:
        print_json({name: _document(each) for name, each in found.items()})
        return 0
    rows = [(name, *_row(each, tier)) for name, each in found.items() for tier in each.tiers]
    table(("kvstore", "tier", "blocks>", "bytes>", "limit>", "hits>", "misses>", "evicted>"), rows)
    return 0


async def _ask_all(client: EtcdClient, tls: ClientTls | None) -> dict[str, Stats]:
    async with Members(client, "kvstore") as members:
        return {
            name: await _ask(member.info["address"], tls)
            for name, member in members.current().items()
        }


async def _ask(address: str, tls: ClientTls | None) -> Stats:
    async with connect(address, tls) as channel:
        stub = kvstore_pb2_grpc.KvStoreStub(channel)
        return await call(stub.Stats, kvstore_pb2.StatsRequest(), timeout_s=WITHIN_S)


def _document(stats: Stats) -> dict[str, Any]:
    return MessageToDict(
        stats, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def _row(stats: Stats, tier: kvstore_pb2.TierStats) -> tuple[object, ...]:
    """Look-ups are counted for the store as a whole."""
    return (
        tier.tier,
        tier.blocks,
        tier.used_bytes,
        tier.limit_bytes,
        stats.hits,
        stats.misses,
        tier.evicted_blocks,
    )

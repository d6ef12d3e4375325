"""A process that is a member and a leader, for tests that pause it.

`python -m libs.cluster.tests.worker ENDPOINT NAME KEY` prints a JSON line once it leads. For every
line on stdin it tries to write KEY under its guard and prints a line about how that went.
"""

from __future__ import annotations

import asyncio
import json
import sys

from libs.cluster.client import EtcdClient
from libs.cluster.election import Election
from libs.cluster.membership import Membership
from libs.cluster.ops import Put


async def main(endpoint: str, name: str, key: str) -> None:
    loop = asyncio.get_running_loop()
    async with (
        EtcdClient([endpoint]) as client,
        Membership(client, name, "worker", {}, incarnation="w", ttl_s=2) as membership,
        await Election(client, name, "worker", ttl_s=2).campaign() as leadership,
    ):
        say(epoch=leadership.epoch, member_epoch=membership.epoch)
        while await loop.run_in_executor(None, sys.stdin.readline):
            held = leadership.held
            result = await client.txn([leadership.guard()], then=[Put(key, b"worker")])
            say(held=held, written=result.succeeded)


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

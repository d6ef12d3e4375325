"""One lease. It keeps itself alive; it is held, in doubt, or lost for ever.

The local clock decides whether it is held, and it errs to the safe side: until one time to live
after the *sending* of the last renewal that was answered, which is before etcd can let it expire.
So while `held` is true, the keys are there. Afterwards it is in doubt until etcd has been heard
again: an etcd that was not running let nothing expire, and gives every lease its whole time anew
when it starts, so the lease is held again. Only etcd's word sets `lost`; then the keys are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from grpc import aio

from etcd.api.etcdserverpb import rpc_pb2
from libs.cluster.errors import ClusterError, LeaseLost
from libs.cluster.transport import Transport
from libs.lasting import lasting

RETRY_S = 0.1


class Lease:
    """`lost` is set when the lease has ended for certain, `abandon` and `revoke` included."""

    def __init__(self, transport: Transport, id_: int, ttl_s: int, expires: float) -> None:
        self.id = id_
        self.ttl_s = ttl_s
        self.lost = asyncio.Event()
        self._transport = transport
        self._expires = expires
        self._keeper = lasting(self._keep_alive(), f"lease-{id_:x}")

    @classmethod
    async def grant(cls, transport: Transport, ttl_s: int) -> Lease:
        """etcd may lengthen a short time to live (its floor is 1.5 election timeouts). A repeated
        grant leaves at worst an empty lease that expires by itself."""
        sent = asyncio.get_running_loop().time()
        answer = await transport.read(
            lambda endpoint: endpoint.lease.LeaseGrant, rpc_pb2.LeaseGrantRequest(TTL=ttl_s)
        )
        return cls(transport, answer.ID, answer.TTL, sent + answer.TTL)

    @property
    def held(self) -> bool:
        """False as soon as the time is up, even before any task of a process that was paused has
        run again; true again if it then turns out that etcd still has it."""
        return not self.lost.is_set() and asyncio.get_running_loop().time() < self._expires

    @property
    def expires_at(self) -> float:
        """Until when it is held without another renewal, in the event loop's time."""
        return self._expires

    def abandon(self) -> None:
        """Stops renewing: lost now, gone in etcd within the time to live."""
        self._keeper.cancel()
        self.lost.set()

    async def revoke(self) -> None:
        """Ends it in etcd, which deletes its keys at once. One try: it expires anyway, and a
        process that ends must not wait for an etcd that is away or refuses it."""
        self.abandon()
        with contextlib.suppress(ClusterError):
            await revoke_lease(self._transport, self.id, within_s=self._transport.per_try_timeout_s)

    async def _keep_alive(self) -> None:
        loop = asyncio.get_running_loop()
        wait_s = self.ttl_s / 3
        while True:
            await asyncio.sleep(wait_s)
            sent = loop.time()
            ttl_s = await self._renew()
            if ttl_s is None:
                wait_s = RETRY_S
            elif ttl_s <= 0:
                break
            else:
                self._expires = sent + ttl_s
                wait_s = self.ttl_s / 3
        self.lost.set()

    async def _renew(self) -> int | None:
        """Seconds that the lease lives on (<= 0: it is gone), None without an answer. A stream per
        renewal costs little and leaves no half-dead stream to reason about."""
        try:
            async with asyncio.timeout(self._transport.per_try_timeout_s):
                return await self._ask()
        except (TimeoutError, ClusterError):
            return None

    async def _ask(self) -> int | None:
        loop = asyncio.get_running_loop()
        endpoint = await self._transport.ready_endpoint(loop.time() + self.ttl_s)
        metadata = await self._transport.metadata(endpoint)
        call = endpoint.lease.LeaseKeepAlive(self._request(), metadata=metadata)
        try:
            answer = await call.read()
        except aio.AioRpcError as error:
            self._transport.settle(endpoint, error)
            return None
        except asyncio.CancelledError:
            self._transport.failed(endpoint)
            raise
        finally:
            call.cancel()
        return answer.TTL if isinstance(answer, rpc_pb2.LeaseKeepAliveResponse) else None

    async def _request(self) -> AsyncIterator[rpc_pb2.LeaseKeepAliveRequest]:
        yield rpc_pb2.LeaseKeepAliveRequest(ID=self.id)


async def revoke_lease(
    transport: Transport, lease_id: int, *, within_s: float | None = None
) -> None:
    """Ends a lease; no error if it has ended already, so it may be repeated."""
    deadline = asyncio.get_running_loop().time() + (within_s or transport.deadline_s)
    with contextlib.suppress(LeaseLost):
        await transport.read(
            lambda endpoint: endpoint.lease.LeaseRevoke,
            rpc_pb2.LeaseRevokeRequest(ID=lease_id),
            deadline=deadline,
        )

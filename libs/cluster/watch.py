"""List-and-watch: first everything under a prefix, then every change to it, in order.

Applied one after the other, the items make a state that is always one that etcd had, and that ends
equal to etcd's, whatever happens in between: a lost or silent stream is reopened at the revision
after the last one seen; where history is compacted, or began anew, the prefix is listed again and
a fresh Snapshot replaces the state. An outage is silence, never an error or an empty Snapshot.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from grpc import StatusCode, aio

from etcd.api.etcdserverpb import rpc_pb2
from etcd.api.mvccpb import kv_pb2
from libs.cluster.entry import Entry, Listing, entry_of, prefix_end
from libs.cluster.errors import PASSING, ClusterError, PermissionRefused
from libs.cluster.fate import Fate, fate_of, refused
from libs.cluster.patience import Patience
from libs.cluster.transport import Endpoint, Transport

log = logging.getLogger(__name__)

REOPEN_PAUSE_S = 0.1

Call = aio.StreamStreamCall[rpc_pb2.WatchRequest, rpc_pb2.WatchResponse]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All entries at `revision`: what was known before and is not in here is gone."""

    entries: tuple[Entry, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class PutEvent:
    entry: Entry


@dataclass(frozen=True, slots=True)
class DeleteEvent:
    key: str
    revision: int


WatchItem = Snapshot | PutEvent | DeleteEvent


class Lists(Protocol):
    """What a watch needs of the client."""

    transport: Transport

    async def list(self, prefix: str) -> Listing: ...


class Watch:
    """`async with client.watch(prefix) as watch: async for item in watch: ...`

    One consumer. The first item is a Snapshot; until it is there ClusterUnavailable or
    PermissionRefused is raised, afterwards nothing: access that is taken away may be given back,
    and until then it is as in an outage. `silence_s`: after so long without a message the server is
    asked for a sign of life, and after as long again the stream is given up.
    """

    def __init__(self, client: Lists, prefix: str, *, silence_s: float = 3.0) -> None:
        self.prefix = prefix
        self.silence_s = silence_s
        # Loop time at which contact was last found again after a loss; -inf: never lost.
        self.recovered_at = float("-inf")
        self._client = client
        self._transport = client.transport
        self._pending: deque[WatchItem] = deque()
        self._revision: int | None = None
        self._cluster_id = 0
        self._begun = False
        self._closed = False
        self._heard_at = 0.0
        self._pinged = False
        self._lost = False
        self._patience = Patience(f"watch of {prefix}", log)
        self._reauthenticated = False
        self._endpoint: Endpoint | None = None
        self._call: Call | None = None
        self._reading: asyncio.Task[rpc_pb2.WatchResponse | object] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        self._closed = True
        self._drop()

    def __aiter__(self) -> Self:
        return self

    @property
    def connected(self) -> bool:
        """Whether a stream is open now, as far as is known."""
        return self._call is not None

    async def __anext__(self) -> WatchItem:
        """May be cancelled and called again: nothing is lost."""
        while not self._pending:
            if self._closed:
                raise StopAsyncIteration
            if self._revision is None:
                await self._list()
            elif self._call is None:
                await self._open(self._revision + 1)
            else:
                await self._receive(self._call)
        return self._pending.popleft()

    async def _list(self) -> None:
        try:
            listing = await self._client.list(self.prefix)
        except ClusterError as error:
            # Compacted between two pages, away, or refused.
            if not self._begun:
                raise
            await self._rest(error)
            return
        self._revision = listing.revision
        if self._lost:
            self.recovered_at = asyncio.get_running_loop().time()
        self._begun = True
        self._pending.append(Snapshot(listing.entries, listing.revision))

    async def _open(self, start_revision: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            endpoint = await self._transport.ready_endpoint(
                loop.time() + self._transport.deadline_s
            )
            metadata = await self._transport.metadata(endpoint)
        except PASSING as error:
            await self._rest(error)
            return
        self._endpoint = endpoint
        self._call = endpoint.watch.Watch(None, metadata=metadata)
        self._heard_at = loop.time()
        self._pinged = False
        create = rpc_pb2.WatchCreateRequest(
            key=self.prefix.encode(),
            range_end=prefix_end(self.prefix),
            start_revision=start_revision,
            progress_notify=True,
        )
        await self._send(self._call, rpc_pb2.WatchRequest(create_request=create))

    async def _send(self, call: Call, request: rpc_pb2.WatchRequest) -> None:
        try:
            async with asyncio.timeout(self.silence_s):
                await call.write(request)
        except (TimeoutError, aio.AioRpcError, asyncio.InvalidStateError):
            await self._reopen()
        except asyncio.CancelledError:
            # Cancelling a write cancels the stream.
            self._drop()
            raise

    async def _receive(self, call: Call) -> None:
        """Waits for one response, or for the silence to be too long. The read is a task of its own,
        because cancelling a read would cancel the stream."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(call.read())
        await asyncio.wait({self._reading}, timeout=self.silence_s)
        if self._reading.done():
            reading, self._reading = self._reading, None
            await self._finish(reading)
        elif self._pinged:
            await self._reopen()
        else:
            self._pinged = True
            progress = rpc_pb2.WatchProgressRequest()
            await self._send(call, rpc_pb2.WatchRequest(progress_request=progress))

    async def _finish(self, reading: asyncio.Task[rpc_pb2.WatchResponse | object]) -> None:
        try:
            response = reading.result()
        except aio.AioRpcError as error:
            await self._reopen(self._judge(error.code(), error.details() or ""))
        except asyncio.CancelledError:
            # The call was cancelled from below, not this task.
            await self._reopen()
        else:
            if isinstance(response, rpc_pb2.WatchResponse):
                await self._take(response)
            else:
                await self._reopen()

    async def _take(self, response: rpc_pb2.WatchResponse) -> None:
        self._note_contact()
        if response.canceled:
            refusal = None
            if response.compact_revision or "compacted" in response.cancel_reason:
                self._revision = None
            elif response.cancel_reason:
                refusal = self._judge(StatusCode.UNAVAILABLE, response.cancel_reason)
            await self._reopen(refusal)
        elif response.created and self._is_another_history(response.header):
            self._revision = None
            self._drop()
        elif response.events:
            self._reauthenticated = False
            self._pending.extend(_item_of(event) for event in response.events)
            self._revision = response.events[-1].kv.mod_revision

    def _note_contact(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._lost or now - self._heard_at > 1.5 * self.silence_s:
            self.recovered_at = now
        self._lost = False
        self._patience.over()
        self._heard_at = now
        self._pinged = False

    def _is_another_history(self, header: rpc_pb2.ResponseHeader) -> bool:
        """Restored from a backup or wiped: another cluster, or a revision that is behind ours (a
        follower that lags looks the same, and then one more list does no harm)."""
        before, self._cluster_id = self._cluster_id, header.cluster_id
        return before not in (0, header.cluster_id) or header.revision < (self._revision or 0)

    def _judge(self, code: StatusCode, details: str) -> PermissionRefused | None:
        """The refusal, if it is one for now. The token is renewed first, every other time: etcd
        tells a watch with an expired one that permission is denied."""
        fate = fate_of(code, details)
        if fate is not Fate.STALE_TOKEN and not isinstance(fate, PermissionRefused):
            return None
        refusal = refused(details) if isinstance(fate, Fate) else fate
        renews, self._reauthenticated = not self._reauthenticated, not self._reauthenticated
        try:
            if renews:
                self._transport.forget_token()
        except PermissionRefused:
            return refusal
        return None if renews else refusal

    async def _reopen(self, refusal: PermissionRefused | None = None) -> None:
        endpoint = self._endpoint
        self._drop()
        self._lost = True
        if endpoint is not None:
            self._transport.failed(endpoint)
        if refusal is not None:
            await self._rest(refusal)
        else:
            await asyncio.sleep(REOPEN_PAUSE_S)

    async def _rest(self, error: ClusterError) -> None:
        self._lost = True
        await self._patience.rest(error)

    def _drop(self) -> None:
        reading, self._reading = self._reading, None
        call, self._call = self._call, None
        self._endpoint = None
        if reading is not None:
            # Its end is of no interest any more, but an exception must be fetched.
            reading.add_done_callback(lambda task: task.cancelled() or task.exception())
            reading.cancel()
        if call is not None:
            call.cancel()


def _item_of(event: kv_pb2.Event) -> WatchItem:
    if event.type == kv_pb2.Event.DELETE:
        return DeleteEvent(event.kv.key.decode(), event.kv.mod_revision)
    return PutEvent(entry_of(event.kv))

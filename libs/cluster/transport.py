"""Calls to whichever etcd endpoint answers.

Reads are sent again, endpoint after endpoint, until the deadline. A write is sent at most once: it
leaves only on a connection known to be up, and if no answer comes its outcome is unknown and said
to be. (gRPC's own retries are off for the same reason.) Owner of the channels and the auth token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from grpc import ChannelConnectivity, StatusCode, aio

from etcd.api.etcdserverpb import rpc_pb2, rpc_pb2_grpc
from libs.cluster.errors import ClusterError, ClusterUnavailable, OutcomeUnknown
from libs.cluster.fate import Fate, fate_of, refused
from libs.rpc.fresh_channel import FreshChannel
from libs.rpc.tls import ClientTls
from libs.rpc.unreachable import unreachable

Request = TypeVar("Request")
Response = TypeVar("Response")
Metadata = tuple[tuple[str, str], ...]
Password = str | Callable[[], str] | None
"""A callable is asked at each login, so that a changed password takes effect."""

PAUSE_S = 0.05
# A member that has lost its quorum refuses at once instead of letting the call time out.
REQUIRE_LEADER = ("hasleader", "true")
# etcd answers a keepalive more often than every 5 s with GOAWAY.
CHANNEL_OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


class Endpoint:
    """One address, its channel, and etcd's stubs on it."""

    def __init__(self, address: str, tls: ClientTls | None) -> None:
        self.address = address
        self.channel = _open(address, tls)
        self.kv = rpc_pb2_grpc.KVStub(self.channel)
        self.lease = rpc_pb2_grpc.LeaseStub(self.channel)
        self.watch = rpc_pb2_grpc.WatchStub(self.channel)
        self.auth = rpc_pb2_grpc.AuthStub(self.channel)

    async def connect(self, within_s: float) -> bool:
        """True once the connection is up; False if it is refused or takes longer."""
        try:
            async with asyncio.timeout(within_s):
                state = self.channel.get_state(try_to_connect=True)
                while state is not ChannelConnectivity.READY:
                    if state is ChannelConnectivity.TRANSIENT_FAILURE:
                        return False
                    await self.channel.wait_for_state_change(state)
                    state = self.channel.get_state(try_to_connect=True)
        except TimeoutError:
            return False
        return True

    async def complaint(self) -> str:
        """Why it cannot be reached, in a few words: only a call brings gRPC's reason to light."""
        try:
            await self.kv.Range(rpc_pb2.RangeRequest(key=b"\0"), timeout=0.2)
        except aio.AioRpcError as error:
            if error.code() is StatusCode.UNAVAILABLE:
                return _reason(error.details() or "")
        return "no answer"


class Transport:
    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        tls: ClientTls | None,
        user: str | None,
        password: Password,
        per_try_timeout_s: float,
        write_timeout_s: float,
        deadline_s: float,
    ) -> None:
        if not endpoints:
            raise ValueError("at least one etcd endpoint is needed, as host:port")
        self.addresses = tuple(endpoints)
        self.per_try_timeout_s = per_try_timeout_s
        self.write_timeout_s = write_timeout_s
        self.deadline_s = deadline_s
        self._tls = tls
        self._user = user
        self._password = password
        self._token: str | None = None
        self._authenticating = asyncio.Lock()
        self._endpoints: list[Endpoint] = []
        self._preferred = 0

    async def close(self) -> None:
        endpoints, self._endpoints = self._endpoints, []
        for endpoint in endpoints:
            await endpoint.channel.close(None)

    async def read(
        self,
        method: Callable[[Endpoint], aio.UnaryUnaryMultiCallable[Request, Response]],
        request: Request,
        *,
        deadline: float | None = None,
    ) -> Response:
        """A call that may be repeated. `deadline` is in the event loop's time."""
        loop = asyncio.get_running_loop()
        deadline = deadline or loop.time() + self.deadline_s
        while True:
            endpoint = await self.ready_endpoint(deadline)
            try:
                return await method(endpoint)(
                    request,
                    timeout=min(self.per_try_timeout_s, deadline - loop.time()),
                    metadata=await self.metadata(endpoint),
                )
            except aio.AioRpcError as error:
                self.settle(endpoint, error)
                if loop.time() >= deadline:
                    raise self._unavailable(endpoint, "no answer") from error
            await asyncio.sleep(PAUSE_S)

    async def write(
        self,
        method: Callable[[Endpoint], aio.UnaryUnaryMultiCallable[Request, Response]],
        request: Request,
    ) -> Response:
        """A call that must not be applied twice. OutcomeUnknown if it was sent and not answered."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.deadline_s
        while True:
            endpoint = await self.ready_endpoint(deadline)
            metadata = await self.metadata(endpoint)
            try:
                return await method(endpoint)(
                    request, timeout=self.write_timeout_s, metadata=metadata
                )
            except aio.AioRpcError as error:
                if self.settle(endpoint, error) is Fate.UNANSWERED:
                    raise OutcomeUnknown(
                        f"etcd at {endpoint.address} took a write and did not answer"
                        f" ({error.code().name}): it may or may not be applied"
                    ) from error
                if loop.time() >= deadline:
                    raise self._unavailable(endpoint, error.details() or "refused") from error
            await asyncio.sleep(PAUSE_S)

    async def ready_endpoint(self, deadline: float) -> Endpoint:
        """An endpoint whose connection is up; ClusterUnavailable at the deadline."""
        loop = asyncio.get_running_loop()
        if not self._endpoints:
            self._endpoints = [Endpoint(address, self._tls) for address in self.addresses]
        while True:
            endpoint = self._endpoints[self._preferred]
            left_s = deadline - loop.time()
            if await endpoint.connect(max(0.0, min(self.per_try_timeout_s, left_s))):
                return endpoint
            self.failed(endpoint)
            if loop.time() + PAUSE_S >= deadline:
                raise self._unavailable(endpoint, await endpoint.complaint())
            await asyncio.sleep(PAUSE_S)

    def failed(self, endpoint: Endpoint) -> None:
        """Makes the endpoint after this one the preferred one, once, whoever tells first."""
        if self._endpoints and self._endpoints[self._preferred] is endpoint:
            self._preferred = (self._preferred + 1) % len(self._endpoints)

    def settle(self, endpoint: Endpoint, error: aio.AioRpcError) -> Fate:
        """Draws the consequences of a failed call; raises if the failure is its final answer."""
        fate = fate_of(error.code(), error.details() or "")
        if isinstance(fate, ClusterError):
            raise fate from error
        if fate is Fate.STALE_TOKEN:
            self.forget_token()
        else:
            self.failed(endpoint)
        return fate

    def forget_token(self) -> None:
        if self._user is None:
            raise refused("it asks for a user and a password, and none is configured")
        self._token = None

    async def metadata(self, endpoint: Endpoint) -> Metadata:
        if self._user is None:
            return (REQUIRE_LEADER,)
        async with self._authenticating:
            if self._token is None:
                self._token = await self._authenticate(endpoint)
        return (REQUIRE_LEADER, ("token", self._token)) if self._token else (REQUIRE_LEADER,)

    async def _authenticate(self, endpoint: Endpoint) -> str:
        """A token; empty if the server asks for none."""
        request = rpc_pb2.AuthenticateRequest(name=self._user or "", password=self._read_password())
        try:
            answer = await endpoint.auth.Authenticate(request, timeout=self.per_try_timeout_s)
        except aio.AioRpcError as error:
            if error.code() is StatusCode.FAILED_PRECONDITION:
                return ""
            if self.settle(endpoint, error) is Fate.STALE_TOKEN:
                raise refused(error.details() or "") from error
            raise self._unavailable(endpoint, "no answer to the login") from error
        return answer.token

    def _read_password(self) -> str:
        return self._password() if callable(self._password) else self._password or ""

    def _unavailable(self, endpoint: Endpoint, why: str) -> ClusterUnavailable:
        others = len(self.addresses) - 1
        more = f" (nor at {others} more)" if others else ""
        return ClusterUnavailable(f"etcd at {endpoint.address} cannot be reached{more}: {why}")


def _open(address: str, tls: ClientTls | None) -> aio.Channel:
    if tls is None:
        return aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    options = list(CHANNEL_OPTIONS)
    if tls.server_name:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return FreshChannel(
        lambda credentials: aio.secure_channel(address, credentials, options=options),
        tls.credentials(),
    )


def _reason(details: str) -> str:
    found = unreachable(details, "etcd")
    return found.why if found else details.strip(" .").lower() or "no answer"

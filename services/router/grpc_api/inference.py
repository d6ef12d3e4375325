"""impala.router.v1.Inference."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator

import orjson

from impala.common.v1 import common_pb2
from impala.router.v1 import router_pb2, router_pb2_grpc
from libs.errors import InvalidArgument
from libs.rpc import remaining
from services.router.call import Call
from services.router.grpc_api.calling import Context, account_of, as_status, owner_of
from services.router.http.completions import trace_of
from services.router.identity import Maker
from services.router.parts import Parts


class InferenceApi(router_pb2_grpc.InferenceServicer):
    def __init__(self, parts: Parts, maker: Maker, within_s: float) -> None:
        self._parts = parts
        self._maker = maker
        self._within_s = within_s

    async def Complete(
        self, request: router_pb2.CompleteRequest, context: Context
    ) -> router_pb2.CompleteResponse:
        with as_status(), self._hold(request, context):
            call = self._call(request, context, stream=False)
            prepared = await self._parts.completions.prepare(call)
            reply = await self._parts.completions.complete(prepared)
        return router_pb2.CompleteResponse(
            body_json=orjson.dumps(reply.body).decode(), request_id=call.request_id
        )

    async def StreamComplete(
        self, request: router_pb2.CompleteRequest, context: Context
    ) -> AsyncGenerator[router_pb2.CompleteChunk, None]:
        with as_status(), self._hold(request, context):
            call = self._call(request, context, stream=True)
            prepared = await self._parts.completions.prepare(call)
            request_id = call.request_id
            async with contextlib.aclosing(self._parts.completions.chunks(prepared)) as chunks:
                async for chunk in chunks:
                    yield router_pb2.CompleteChunk(
                        chunk_json=orjson.dumps(chunk).decode(), request_id=request_id
                    )
                    request_id = ""

    async def ListModels(
        self, request: router_pb2.ListModelsRequest, context: Context
    ) -> router_pb2.ListModelsResponse:
        account_of(self._parts, context)
        fleets = self._parts.fleets
        return router_pb2.ListModelsResponse(
            models=[
                router_pb2.Model(
                    id=name,
                    max_context=info.max_context,
                    weights=common_pb2.WeightVersion(
                        model=name,
                        seq=info.weight_seq,
                        digest=bytes.fromhex(info.weight_digest),
                    ),
                    servers=len(fleets.servers(name)),
                )
                for name, info in sorted(fleets.models().items())
            ]
        )

    @contextlib.contextmanager
    def _hold(self, request: router_pb2.CompleteRequest, context: Context) -> Iterator[None]:
        """The message is here already; beyond the budget nothing more is made of it."""
        with self._parts.request_bytes.hold(owner_of(self._parts, context)) as hold:
            hold.take(len(request.body_json))
            yield

    def _call(self, request: router_pb2.CompleteRequest, context: Context, *, stream: bool) -> Call:
        account = account_of(self._parts, context)
        try:
            body = orjson.loads(request.body_json)
        except orjson.JSONDecodeError as error:
            raise InvalidArgument(
                f"The body is not valid JSON ({error.msg}).", "INVALID_JSON", "body_json"
            ) from None
        if isinstance(body, dict):
            body["stream"] = stream
        headers = {name.lower(): value for name, value in request.headers.items()}
        return Call(
            request_id=f"req_{self._maker.token()}",
            account=account,
            endpoint=request.endpoint,
            body=body,
            within_s=remaining(context, self._within_s),
            window=headers.get("x-impala-window"),
            trace=trace_of(headers),
        )

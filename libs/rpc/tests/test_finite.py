"""NaN and infinities are refused in every field of every request, whoever serves it."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from impala.kvstore.v1 import kvstore_pb2, kvstore_pb2_grpc
from impala.leap.v1 import leap_pb2
from impala.modelserver.v1 import modelserver_pb2, modelserver_pb2_grpc
from impala.router.v1 import router_pb2
from impala.scheduler.v1 import scheduler_pb2
from libs.errors import InvalidArgument
from libs.rpc import from_rpc_error
from libs.rpc.finite import check_finite
from libs.testing.rpc import connected, serving

FILES = [kvstore_pb2, leap_pb2, modelserver_pb2, router_pb2, scheduler_pb2]
FLOATS = (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT)
BAD = [math.nan, math.inf, -math.inf]


def requests() -> dict[str, Descriptor]:
    """The request message of every rpc of every service."""
    return {
        method.input_type.full_name: method.input_type
        for file in FILES
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }


def paths(descriptor: Descriptor) -> Iterator[tuple[FieldDescriptor, ...]]:
    """To each float of a message and of the messages in it; none of ours holds itself."""
    for field in descriptor.fields:
        if field.message_type is None:
            if field.cpp_type in FLOATS:
                yield (field,)
        else:
            yield from ((field, *rest) for rest in paths(field.message_type))


CASES = [
    pytest.param(descriptor, path, id=f"{name}:{'.'.join(field.name for field in path)}")
    for name, descriptor in sorted(requests().items())
    for path in paths(descriptor)
]


def put(message: Any, path: tuple[FieldDescriptor, ...], number: float) -> None:
    field, *rest = path
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        key: Any = "k" if inner.fields_by_name["key"].type == FieldDescriptor.TYPE_STRING else 7
        getattr(message, field.name)[key] = number
    elif inner is None and field.is_repeated:
        getattr(message, field.name).extend([0.0, number])
    elif inner is None:
        setattr(message, field.name, number)
    elif field.is_repeated:
        put(getattr(message, field.name).add(), tuple(rest), number)
    else:
        put(getattr(message, field.name), tuple(rest), number)


def test_the_table_has_the_fields_that_are_known_to_matter() -> None:
    names = {case.id for case in CASES}
    assert names >= {
        "impala.router.v1.CreateJobRequest:price_per_engine_hour",
        "impala.modelserver.v1.GenerateRequest:sampling.temperature",
        "impala.modelserver.v1.GenerateRequest:sampling.logit_bias.value",
        "impala.modelserver.v1.GenerateRequest:coalesce_s",
        "impala.modelserver.v1.WatchStateRequest:interval_s",
    }


@pytest.mark.parametrize(("descriptor", "path"), CASES)
def test_every_float_of_every_request_must_be_finite(
    descriptor: Descriptor, path: tuple[FieldDescriptor, ...]
) -> None:
    fine = GetMessageClass(descriptor)()
    put(fine, path, 1.5)
    check_finite(fine)
    for number in BAD:
        message = GetMessageClass(descriptor)()
        put(message, path, number)
        with pytest.raises(InvalidArgument) as caught:
            check_finite(message)
        assert caught.value.reason == "NOT_FINITE"
        assert caught.value.field is not None
        assert caught.value.field.startswith(path[0].name)


class Models(modelserver_pb2_grpc.ModelServerServicer):
    async def WatchState(
        self, request: modelserver_pb2.WatchStateRequest, context: Any
    ) -> AsyncIterator[modelserver_pb2.State]:
        yield modelserver_pb2.State(model="m")


class Store(kvstore_pb2_grpc.KvStoreServicer):
    async def Put(
        self, request_iterator: AsyncIterator[kvstore_pb2.PutRequest], context: Any
    ) -> kvstore_pb2.PutResponse:
        first = await anext(aiter(request_iterator))
        return kvstore_pb2.PutResponse(stored=sum([1 async for _ in request_iterator], bool(first)))


async def test_a_server_refuses_them_before_its_handler() -> None:
    async with (
        serving((modelserver_pb2_grpc.add_ModelServerServicer_to_server, Models())) as rpc,
        connected(rpc) as channel,
    ):
        stub = modelserver_pb2_grpc.ModelServerStub(channel)
        fine = stub.WatchState(modelserver_pb2.WatchStateRequest(interval_s=1.0))
        assert [state.model async for state in fine] == ["m"]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(
                aiter(stub.WatchState(modelserver_pb2.WatchStateRequest(interval_s=BAD[0])))
            )
    error = from_rpc_error(caught.value)
    assert (error.reason, error.field) == ("NOT_FINITE", "interval_s")
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("bad_at", [None, 0, 2])
async def test_each_message_of_a_stream_is_checked(bad_at: int | None) -> None:
    sent = [
        kvstore_pb2.PutRequest(lease_s=BAD[0] if at == bad_at else float(at)) for at in range(3)
    ]
    async with (
        serving((kvstore_pb2_grpc.add_KvStoreServicer_to_server, Store())) as rpc,
        connected(rpc) as channel,
    ):
        call = kvstore_pb2_grpc.KvStoreStub(channel).Put(iter(sent))
        if bad_at is None:
            assert (await call).stored == 3
            return
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
    assert from_rpc_error(caught.value).reason == "NOT_FINITE"

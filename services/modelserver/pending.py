"""Contracts of the model server that are not served yet: each call says why."""

from collections.abc import AsyncIterator
from typing import NoReturn

import grpc

from impala.modelserver.v1 import modelserver_pb2 as pb
from impala.modelserver.v1 import modelserver_pb2_grpc
from libs.errors import Unimplemented

_Context = grpc.aio.ServicerContext[object, object]


def _tiers() -> NoReturn:
    raise Unimplemented(
        "The scheduler does not steer KV residency yet: evicted blocks go to the kvstore and come "
        "back on a prefix hit.",
        "KV_CONTROL_UNIMPLEMENTED",
    )


def _weights() -> NoReturn:
    raise Unimplemented(
        "Weights are fixed for a model server's life so far; restart it with another --model.",
        "WEIGHT_CONTROL_UNIMPLEMENTED",
    )


class KvControlPending(modelserver_pb2_grpc.KvControlServicer):
    """Residency is decided here alone, by recency."""

    async def Prefetch(self, request: pb.PrefetchRequest, context: _Context) -> pb.PrefetchResponse:
        _tiers()

    async def Lease(self, request: pb.LeaseRequest, context: _Context) -> pb.LeaseResponse:
        _tiers()

    async def Drop(self, request: pb.DropRequest, context: _Context) -> pb.DropResponse:
        _tiers()


class WeightControlPending(modelserver_pb2_grpc.WeightControlServicer):
    """The served version is the one loaded at the start."""

    async def StageWeights(
        self, request: pb.StageWeightsRequest, context: _Context
    ) -> AsyncIterator[pb.ReplicaWeights]:
        _weights()
        yield pb.ReplicaWeights()

    async def CommitWeights(
        self, request: pb.CommitWeightsRequest, context: _Context
    ) -> pb.ReplicaWeights:
        _weights()

    async def AbortWeights(
        self, request: pb.AbortWeightsRequest, context: _Context
    ) -> pb.ReplicaWeights:
        _weights()

    async def WeightsStatus(
        self, request: pb.WeightsStatusRequest, context: _Context
    ) -> pb.ReplicaWeights:
        _weights()

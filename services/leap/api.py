"""The Leap contract over gRPC: check, delegate, fill. What is not there yet says so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NoReturn

from impala.common.v1 import common_pb2
from impala.leap.v1 import leap_pb2, leap_pb2_grpc
from libs.errors import InvalidArgument, Unimplemented
from services.leap.app import LeapApp
from services.leap.core.manifest import Manifest, Tensor
from services.leap.core.version import ModelStatus, Replica, State, Version

_STATES = {
    State.REGISTERED: leap_pb2.Version.STATE_REGISTERED,
    State.SEALED: leap_pb2.Version.STATE_SEALED,
    State.RETIRED: leap_pb2.Version.STATE_RETIRED,
}


class LeapApi(leap_pb2_grpc.LeapServicer):
    """Serves one app."""

    def __init__(self, app: LeapApp) -> None:
        self._app = app

    async def RegisterVersion(
        self, request: leap_pb2.RegisterVersionRequest, context: Any
    ) -> leap_pb2.RegisterVersionResponse:
        registration = await self._app.register(_manifest_of(request.manifest))
        return leap_pb2.RegisterVersionResponse(
            version=_version_message(registration.version), created=registration.created
        )

    async def GetVersion(
        self, request: leap_pb2.GetVersionRequest, context: Any
    ) -> leap_pb2.Version:
        if not request.model:
            raise InvalidArgument("model is empty.", "MODEL_REQUIRED", "model")
        version = await self._app.get(request.model, request.seq, with_tensors=request.with_tensors)
        return _version_message(version)

    async def ListVersions(
        self, request: leap_pb2.ListVersionsRequest, context: Any
    ) -> leap_pb2.ListVersionsResponse:
        page = await self._app.page(request.model, request.page.limit, request.page.after)
        last_id = page.versions[-1].page_id if page.versions else ""
        return leap_pb2.ListVersionsResponse(
            versions=[_version_message(version) for version in page.versions],
            page=common_pb2.PageInfo(has_more=page.has_more, last_id=last_id),
        )

    async def Status(
        self, request: leap_pb2.StatusRequest, context: Any
    ) -> leap_pb2.StatusResponse:
        found = await self._app.status(request.model)
        return leap_pb2.StatusResponse(models=[_status_message(status) for status in found])

    async def Push(
        self, request: leap_pb2.PushRequest, context: Any
    ) -> AsyncIterator[leap_pb2.PushProgress]:
        _not_yet("Push")
        yield leap_pb2.PushProgress()  # makes it the stream that the contract says

    async def Stage(self, request: leap_pb2.StageRequest, context: Any) -> NoReturn:
        _not_yet("Stage")

    async def Commit(self, request: leap_pb2.CommitRequest, context: Any) -> NoReturn:
        _not_yet("Commit")

    async def Abort(self, request: leap_pb2.AbortRequest, context: Any) -> NoReturn:
        _not_yet("Abort")

    async def Rollback(self, request: leap_pb2.RollbackRequest, context: Any) -> NoReturn:
        _not_yet("Rollback")


def _not_yet(method: str) -> NoReturn:
    raise Unimplemented(
        f"{method} is not implemented: this release registers and reports weight versions; to "
        "change what is served, restart the model servers with other weights.",
        "LIVE_UPDATES_NOT_IMPLEMENTED",
    )


def _manifest_of(message: leap_pb2.Manifest) -> Manifest:
    return Manifest(
        model=message.model,
        digest=message.digest,
        config_digest=message.config_digest,
        layout_signature=message.layout_signature,
        tensors=tuple(
            Tensor(tensor.name, tensor.dtype, tuple(tensor.shape), tensor.digest)
            for tensor in message.tensors
        ),
        parent_seq=message.parent_seq,
        delta=message.delta,
        source=message.source,
        label=message.label,
        bytes=message.bytes,
    )


def _version_message(version: Version) -> leap_pb2.Version:
    manifest = version.manifest
    return leap_pb2.Version(
        seq=version.seq,
        created_unix_ms=version.created_unix_ms,
        state=_STATES[version.state],
        manifest=leap_pb2.Manifest(
            model=manifest.model,
            digest=manifest.digest,
            config_digest=manifest.config_digest,
            layout_signature=manifest.layout_signature,
            tensors=[
                leap_pb2.TensorDigest(name=t.name, dtype=t.dtype, shape=t.shape, digest=t.digest)
                for t in manifest.tensors
            ],
            parent_seq=manifest.parent_seq,
            delta=manifest.delta,
            source=manifest.source,
            label=manifest.label,
            bytes=manifest.bytes,
        ),
    )


def _status_message(status: ModelStatus) -> leap_pb2.ModelStatus:
    return leap_pb2.ModelStatus(
        model=status.model,
        serving=_version_message(status.serving) if status.serving else None,
        replicas=[_replica_message(replica) for replica in status.replicas],
    )


def _replica_message(replica: Replica) -> leap_pb2.ReplicaStatus:
    return leap_pb2.ReplicaStatus(
        member_id=replica.member_id,
        state=replica.state,
        applied_seq=replica.applied_seq,
        applied_digest=replica.applied_digest,
    )

"""Tells Leap which weights are served here, and learns their version number."""

import logging

from impala.leap.v1 import leap_pb2, leap_pb2_grpc
from libs.clock import Clock
from libs.cluster.members import Members
from libs.errors import ImpalaError
from libs.rpc import ClientTls, call, connect
from services.modelserver.herd.models.digest import FLOAT_DTYPES, ModelDigests, layout_signature

log = logging.getLogger(__name__)

_TIMEOUT_S = 5.0
_RETRY_S = 1.0
_DTYPE_CODES = {dtype: code for code, dtype in FLOAT_DTYPES.items()}


def manifest_of(model: str, source: str, digests: ModelDigests) -> leap_pb2.Manifest:
    """The manifest of loaded weights. Plain types are named as safetensors does (F32, F16, BF16),
    quantized ones as GGUF does."""
    return leap_pb2.Manifest(
        model=model,
        digest=digests.root,
        config_digest=digests.config,
        layout_signature=layout_signature(digests),
        source=source,
        tensors=[
            leap_pb2.TensorDigest(
                name=name,
                dtype=_DTYPE_CODES.get(tensor.dtype, tensor.dtype),
                shape=tensor.shape,
                digest=tensor.digest,
            )
            for name, tensor in digests.tensors.items()
        ],
        bytes=digests.stored_bytes,
    )


async def register_weights(
    manifest: leap_pb2.Manifest,
    leaps: Members,
    *,
    clock: Clock,
    tls: ClientTls | None = None,
) -> int:
    """The version's seq; tries until a Leap service answers. Registering twice is harmless."""
    request = leap_pb2.RegisterVersionRequest(manifest=manifest)
    waiting, told = False, ""
    while True:
        for member in leaps.current().values():
            async with connect(str(member.info["address"]), tls) as channel:
                stub = leap_pb2_grpc.LeapStub(channel)
                try:
                    answer = await call(stub.RegisterVersion, request, timeout_s=_TIMEOUT_S)
                    return answer.version.seq
                except ImpalaError as error:
                    if str(error) != told:
                        told = str(error)
                        log.warning("Leap did not register the weights: %s", error)
        if not waiting:
            waiting = True
            log.info("waiting for a Leap service to number the served weights")
        await clock.sleep(_RETRY_S)

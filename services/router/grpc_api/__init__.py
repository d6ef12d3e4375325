"""The public gRPC API and the batch worker, thin over the same objects as the HTTP surface."""

import grpc

from impala.router.v1 import router_pb2_grpc
from services.router.grpc_api.batches import BatchesApi
from services.router.grpc_api.files import FilesApi
from services.router.grpc_api.inference import InferenceApi
from services.router.grpc_api.jobs import JobsApi, RunsApi
from services.router.grpc_api.worker import BatchWorkerApi
from services.router.identity import Maker
from services.router.parts import Parts

SERVICES = tuple(
    f"impala.router.v1.{name}"
    for name in ("Inference", "Jobs", "Files", "Batches", "Runs", "BatchWorker")
)


def add_services(
    server: grpc.aio.Server, parts: Parts, maker: Maker, request_timeout_s: float
) -> None:
    """request_timeout_s: how long a single request may take in all."""
    inference = InferenceApi(parts, maker, request_timeout_s)
    router_pb2_grpc.add_InferenceServicer_to_server(inference, server)
    router_pb2_grpc.add_JobsServicer_to_server(JobsApi(parts), server)
    router_pb2_grpc.add_FilesServicer_to_server(FilesApi(parts), server)
    router_pb2_grpc.add_BatchesServicer_to_server(BatchesApi(parts), server)
    router_pb2_grpc.add_RunsServicer_to_server(RunsApi(parts), server)
    router_pb2_grpc.add_BatchWorkerServicer_to_server(BatchWorkerApi(parts), server)

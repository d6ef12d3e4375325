"""Finished lines of a batch as they come, over gRPC."""

from __future__ import annotations

import asyncio
import sys

from impala.router.v1 import router_pb2, router_pb2_grpc
from libs.errors import Unavailable
from libs.rpc import connect, stream

FOLLOW_S = 365 * 86_400.0
RETRY_S = 0.5
TRIES = 120


async def follow_results(target: str, batch_id: str, *, api_key: str, errors: bool) -> None:
    """Writes each line to stdout; goes on where it was when the router is started again."""
    metadata = [("authorization", f"Bearer {api_key}")] if api_key else []
    seen, tries = 0, 0
    async with connect(target) as channel:
        stub = router_pb2_grpc.BatchesStub(channel)
        while True:
            request = router_pb2.ResultsRequest(batch_id=batch_id, follow=True, after=seen)
            try:
                async for line in stream(
                    stub.Results, request, timeout_s=FOLLOW_S, metadata=metadata
                ):
                    seen, tries = seen + 1, 0
                    if line.is_error == errors:
                        sys.stdout.write(line.line_json + "\n")
                        sys.stdout.flush()
                return
            except Unavailable:
                tries += 1
                if tries >= TRIES:
                    raise
                await asyncio.sleep(RETRY_S)

"""impala.router.v1.Files."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

from impala.router.v1 import router_pb2, router_pb2_grpc
from libs.errors import DeadlineExceeded, InvalidArgument
from services.router.files import check_expiry_s
from services.router.grpc_api.calling import Context, account_of, as_status, owner_of, page_limit
from services.router.grpc_api.messages import file_message, page_info
from services.router.parts import Parts
from services.router.timely import PACE, timely


class FilesApi(router_pb2_grpc.FilesServicer):
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def Upload(
        self, request_iterator: AsyncIterator[router_pb2.UploadRequest], context: Context
    ) -> router_pb2.File:
        with as_status():
            account = account_of(self._parts, context)
            first = await anext(aiter(request_iterator), None)
            if first is None or first.WhichOneof("part") != "start":
                raise InvalidArgument("The first message must be `start`.", "NO_START", "start")
            start = first.start
            expires = check_expiry_s("start.expires_after_s", start.expires_after_s)
            self._parts.files.check_purpose(start.purpose)
            too_slow = DeadlineExceeded(f"The file came too slowly: {PACE}.", "UPLOAD_SLOW")
            async with await self._parts.files.begin(
                account, owner_of(self._parts, context)
            ) as upload:
                chunks = (message.chunk async for message in request_iterator)
                async for chunk in timely(chunks, too_slow):
                    await upload.write(chunk)
                return file_message(
                    await upload.finish(start.filename or "upload", start.purpose, expires)
                )

    async def GetFile(
        self, request: router_pb2.GetFileRequest, context: Context
    ) -> router_pb2.File:
        with as_status():
            stored = await self._parts.files.get(account_of(self._parts, context), request.id)
        return file_message(stored.record)

    async def ListFiles(
        self, request: router_pb2.ListFilesRequest, context: Context
    ) -> router_pb2.ListFilesResponse:
        with as_status():
            page = await self._parts.files.page(
                account_of(self._parts, context),
                limit=page_limit(request.page.limit),
                after=request.page.after,
                newest_first=True,
                purpose=request.purpose,
            )
        return router_pb2.ListFilesResponse(
            files=[file_message(record) for record in page.records],
            page=page_info([record.id for record in page.records], page.has_more),
        )

    async def Download(
        self, request: router_pb2.DownloadRequest, context: Context
    ) -> AsyncGenerator[router_pb2.DownloadResponse, None]:
        with as_status():
            account = account_of(self._parts, context)
            left = request.length or None
            chunks = await self._parts.files.content(account, request.id, request.offset)
            async with contextlib.aclosing(chunks) as source:  # type: ignore[type-var]
                async for chunk in source:
                    part = chunk if left is None else chunk[:left]
                    yield router_pb2.DownloadResponse(chunk=part)
                    if left is not None:
                        left -= len(part)
                        if left <= 0:
                            return

    async def DeleteFile(
        self, request: router_pb2.GetFileRequest, context: Context
    ) -> router_pb2.DeleteFileResponse:
        with as_status():
            await self._parts.files.delete(account_of(self._parts, context), request.id)
        return router_pb2.DeleteFileResponse()

"""/v1/files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from libs.records.batch import FileRecord
from services.router.core.errors import BadRequest
from services.router.core.fields import missing
from services.router.core.paging import list_envelope, parse_limit
from services.router.core.request_fields import unknown
from services.router.files import Upload, form_expiry
from services.router.http.auth import account_of
from services.router.http.body import BodyTooSlow, EncodingUnsupported, check_encoding
from services.router.http.held_bytes import hold_of
from services.router.http.multipart import FieldPart, FileChunk, FileStart, parse_multipart
from services.router.parts import Parts
from services.router.timely import PACE, timely
from services.router.views import file_view

MAX_PAGE = 10_000
_FIELDS = frozenset({"purpose", "expires_after[anchor]", "expires_after[seconds]"})
_DRAIN_BYTES = 1 << 30


class FileRoutes:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def routes(self) -> list[Route]:
        return [
            Route("/v1/files", self.upload, methods=["POST"]),
            Route("/v1/files", self.page, methods=["GET"]),
            Route("/v1/files/{id}", self.get, methods=["GET"]),
            Route("/v1/files/{id}", self.delete, methods=["DELETE"]),
            Route("/v1/files/{id}/content", self.content, methods=["GET"]),
        ]

    async def upload(self, request: Request) -> Response:
        account, owner = account_of(self._parts, request), hold_of(request.scope).owner
        body = timely(request.stream(), BodyTooSlow(PACE))
        try:
            check_encoding(request)
            async with await self._parts.files.begin(account, owner) as upload:
                record = await _receive(request.headers.get("content-type", ""), body, upload)
        except (BadRequest, EncodingUnsupported):
            # The answer is read only by a client that has sent all: take the rest, keep nothing.
            await _drain(body)
            raise
        return JSONResponse(file_view(record))

    async def page(self, request: Request) -> Response:
        account = account_of(self._parts, request)
        query = request.query_params
        order = query.get("order") or "desc"
        if order not in ("asc", "desc"):
            raise BadRequest('\'order\' must be "asc" or "desc".', "order", "invalid_value")
        page = await self._parts.files.page(
            account,
            limit=parse_limit(query.get("limit"), MAX_PAGE, MAX_PAGE),
            after=query.get("after") or "",
            newest_first=order == "desc",
            purpose=query.get("purpose") or "",
        )
        items = [file_view(record) for record in page.records]
        return JSONResponse(list_envelope(items, page.has_more))

    async def get(self, request: Request) -> Response:
        account = account_of(self._parts, request)
        stored = await self._parts.files.get(account, request.path_params["id"])
        return JSONResponse(file_view(stored.record))

    async def delete(self, request: Request) -> Response:
        account = account_of(self._parts, request)
        file_id = request.path_params["id"]
        await self._parts.files.delete(account, file_id)
        return JSONResponse({"id": file_id, "object": "file", "deleted": True})

    async def content(self, request: Request) -> Response:
        account = account_of(self._parts, request)
        stored = await self._parts.files.get(account, request.path_params["id"])
        chunks = await self._parts.files.content(account, stored.record.id)
        return StreamingResponse(
            chunks,
            media_type="application/octet-stream",
            headers={"content-length": str(stored.record.bytes)},
        )


@dataclass
class _Form:
    filename: str | None = None
    fields: dict[str, str] = field(default_factory=dict)
    in_file: bool = False


async def _receive(content_type: str, body: AsyncIterator[bytes], upload: Upload) -> FileRecord:
    form = _Form()
    async for event in parse_multipart(content_type, body):
        match event:
            case FieldPart(name, value):
                if name == "file":
                    message = "The part 'file' needs a filename in its Content-Disposition."
                    raise BadRequest(message, "file", "missing_filename")
                if name not in _FIELDS:
                    raise unknown(name)
                form.fields[name] = value
            case FileStart(name, filename):
                if name != "file" or form.filename is not None:
                    raise BadRequest("The upload must have one part named 'file'.", "file")
                form.filename = filename
            case FileChunk(data):
                await upload.write(data)
    if form.filename is None:
        raise missing("file")
    if "purpose" not in form.fields:
        raise missing("purpose")
    expires = form_expiry(
        form.fields.get("expires_after[anchor]"), form.fields.get("expires_after[seconds]")
    )
    return await upload.finish(form.filename or "upload", form.fields["purpose"], expires)


async def _drain(body: AsyncIterator[bytes]) -> None:
    taken = 0
    try:
        async for chunk in body:
            taken += len(chunk)
            if taken > _DRAIN_BYTES:
                return
    except (BodyTooSlow, ClientDisconnect, RuntimeError):
        # Slow, gone, or read to its end already.
        return

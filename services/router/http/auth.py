"""The caller of a request."""

from __future__ import annotations

from starlette.requests import Request

from services.router.parts import Parts


def account_of(parts: Parts, request: Request) -> str:
    """Raises Unauthenticated."""
    headers = request.headers
    return parts.access.account(headers.get("authorization"), headers.get("x-api-key"))

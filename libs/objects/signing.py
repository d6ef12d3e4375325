"""AWS Signature Version 4 of requests without a body, for the few that obstore has no call for.

Source: the AWS documentation, "Authenticating Requests: Using the Authorization Header".
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote

_EMPTY = hashlib.sha256(b"").hexdigest()
_SERVICE = "s3"


@dataclass(frozen=True, slots=True)
class S3Keys:
    """token: of keys that are lent for a while; else empty."""

    access_key_id: str
    secret_access_key: str
    region: str
    token: str = ""


def query_of(pairs: Sequence[tuple[str, str]]) -> str:
    """The query string, sorted and quoted as it is signed."""
    return "&".join(f"{_quoted(name)}={_quoted(value)}" for name, value in sorted(pairs))


def path_of(path: str) -> str:
    """The path, quoted as it is signed."""
    return quote(path, safe="/~")


def signed_headers(
    method: str,
    host: str,
    path: str,
    query: Sequence[tuple[str, str]],
    keys: S3Keys,
    now: datetime,
) -> Mapping[str, str]:
    """The headers to send with the request. path: not quoted. now: UTC; a store refuses one that is
    off by a quarter of an hour."""
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    headers = {"host": host, "x-amz-content-sha256": _EMPTY, "x-amz-date": stamp}
    if keys.token:
        headers["x-amz-security-token"] = keys.token
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    request = "\n".join([method, path_of(path), query_of(query), lines, names, _EMPTY])
    scope = f"{stamp[:8]}/{keys.region}/{_SERVICE}/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"
    signature = hmac.new(_day_key(keys, stamp[:8]), text.encode(), hashlib.sha256).hexdigest()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={keys.access_key_id}/{scope}, SignedHeaders={names}, "
        f"Signature={signature}"
    )
    return headers


def _day_key(keys: S3Keys, day: str) -> bytes:
    key = f"AWS4{keys.secret_access_key}".encode()
    for part in (day, keys.region, _SERVICE, "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key


def _quoted(text: str) -> str:
    return quote(text, safe="~")

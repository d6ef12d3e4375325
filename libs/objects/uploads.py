"""Multipart uploads of S3 that nobody finishes: their parts are shown nowhere, and are paid for.

obstore neither lists nor ends an upload that it did not begin itself, so both are asked for here.
"""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from libs.objects.errors import StoreUnavailable
from libs.objects.signing import S3Keys, path_of, query_of, signed_headers

TIMEOUT_S = 30.0
_GONE = 404


@dataclass(frozen=True, slots=True)
class OpenUpload:
    key: str
    """With the prefix of the store's URL."""
    upload_id: str
    age: timedelta
    """By the store's own clock."""


class S3Uploads:
    """Blocking. prefix: of the keys that are ours, "" or ending in a slash."""

    def __init__(self, endpoint: str, bucket: str, prefix: str, keys: S3Keys) -> None:
        self._base = urlsplit(endpoint)
        self._bucket = bucket
        self._prefix = prefix
        self._keys = keys

    def sweep(self, older_than_s: float) -> int:
        """Ends the uploads begun longer ago; how many. Raises StoreUnavailable."""
        old = [each for each in self._open() if each.age.total_seconds() >= older_than_s]
        for each in old:
            self._ask("DELETE", f"/{self._bucket}/{each.key}", [("uploadId", each.upload_id)])
        return len(old)

    def _open(self) -> Iterator[OpenUpload]:
        marker: list[tuple[str, str]] = []
        while True:
            query = [("uploads", ""), ("prefix", self._prefix), *marker]
            body, now = self._ask("GET", f"/{self._bucket}", query)
            try:
                listing = ET.fromstring(body)
                yield from [_upload(each, now) for each in listing.iterfind("{*}Upload")]
            except (ET.ParseError, ValueError) as error:
                raise StoreUnavailable(self._bucket, f"unreadable listing: {error}") from error
            if _text(listing, "IsTruncated") != "true":
                return
            marker = [
                ("key-marker", _text(listing, "NextKeyMarker")),
                ("upload-id-marker", _text(listing, "NextUploadIdMarker")),
            ]

    def _ask(
        self, method: str, path: str, query: Sequence[tuple[str, str]]
    ) -> tuple[bytes, datetime]:
        """The answer, and the time there."""
        path = self._base.path.rstrip("/") + path
        now = datetime.now(UTC)
        headers = signed_headers(method, self._base.netloc, path, query, self._keys, now)
        url = f"{self._base.scheme}://{self._base.netloc}{path_of(path)}?{query_of(query)}"
        request = urllib.request.Request(url, method=method, headers=dict(headers))
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return answer.read(), _time(answer.headers, now)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == _GONE and method == "DELETE":  # it was finished, or ended by another
                return b"", now
            raise StoreUnavailable(self._bucket, f"HTTP {error.code}") from error
        except (OSError, http.client.HTTPException) as error:
            raise StoreUnavailable(self._bucket, str(error)) from error


def uploads_of(
    url: str, endpoint: str, options: Mapping[str, str], environment: Mapping[str, str]
) -> S3Uploads | None:
    """Of the store at `url`, by what names its keys to obstore; None where nothing does: they come
    from elsewhere then, which is not asked here."""

    def given(*names: str) -> str:
        found = [options.get(name.lower().removeprefix("aws_"), "") for name in names]
        return next((each for each in (*found, *map(environment.get, names)) if each), "")

    parts = urlsplit(url)
    keys = S3Keys(
        given("AWS_ACCESS_KEY_ID"),
        given("AWS_SECRET_ACCESS_KEY"),
        given("AWS_REGION", "AWS_DEFAULT_REGION") or "us-east-1",
        given("AWS_SESSION_TOKEN"),
    )
    if parts.scheme not in ("s3", "s3a") or not keys.access_key_id or not keys.secret_access_key:
        return None
    prefix = parts.path.strip("/")
    return S3Uploads(
        endpoint or f"https://s3.{keys.region}.amazonaws.com",
        parts.netloc,
        f"{prefix}/" if prefix else "",
        keys,
    )


def _upload(element: ET.Element, now: datetime) -> OpenUpload:
    began = datetime.fromisoformat(_text(element, "Initiated"))
    return OpenUpload(_text(element, "Key"), _text(element, "UploadId"), now - began)


def _text(element: ET.Element, name: str) -> str:
    return element.findtext(f"{{*}}{name}") or ""


def _time(headers: Mapping[str, str], otherwise: datetime) -> datetime:
    told = headers.get("date")
    return parsedate_to_datetime(told) if told else otherwise

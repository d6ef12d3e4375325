"""The router's HTTP API, as much of it as the commands use.

Answers are the JSON objects as they come, typed for the fields that are used here, so that `--json`
shows everything the router says. Errors are CliErrors.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Required, Self, TypedDict, cast
from urllib.parse import quote, urlsplit

import httpx
import orjson

from libs.rpc import ClientTls
from services.cli.errors import ApiError, CliError, NotReachable
from services.cli.tls_files import http_context

TIMEOUT = httpx.Timeout(60.0, connect=5.0)
TRANSFER = httpx.Timeout(600.0, connect=5.0)
FOLLOW = httpx.Timeout(60.0, connect=5.0)
CHUNK_BYTES = 1 << 20
BROKEN = (httpx.HTTPError, ssl.SSLError)
"""A server may refuse a client after the handshake; that error comes as ssl made it."""
NO_CERTIFICATE = "CERTIFICATE_REQUIRED"
MOST_JOBS = 10_000
"""What one page may have at most."""


class Quiet(Exception):
    """Nothing was said for so long that it is better to ask again."""


LISTS = {
    "batch_not_found": "impala batch list",
    "file_not_found": "impala files list",
    "job_not_found": "impala jobs list",
    "run_not_found": "impala runs list",
}
"""Where to look for what an error code says is not there."""


class Model(TypedDict, total=False):
    id: Required[str]


class Job(TypedDict, total=False):
    id: Required[str]
    model: Required[str]
    name: str
    precision: str | None
    price_per_engine_hour: float
    created_at: int


class File(TypedDict, total=False):
    id: Required[str]
    bytes: int
    filename: str
    purpose: str
    created_at: int


class Counts(TypedDict):
    total: int
    completed: int
    failed: int


class Usage(TypedDict, total=False):
    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int


class BatchErrors(TypedDict):
    data: list[dict[str, Any]]


class Batch(TypedDict, total=False):
    id: Required[str]
    status: Required[str]
    request_counts: Required[Counts]
    unanswered: int
    rerun: int
    usage: Required[Usage]
    endpoint: str
    model: str | None
    job_id: str | None
    run_id: str | None
    input_file_id: str
    output_file_id: str | None
    error_file_id: str | None
    errors: BatchErrors | None
    created_at: int
    completion_window: str
    processing_cost: float
    price_1m_tokens: float | None
    tasks_per_dollar: float | None
    task_completion_s: dict[str, float] | None


class Ledger(TypedDict, total=False):
    tasks: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    busy_engine_s: float
    idle_engine_s: float
    wall_engine_s: float
    price_per_engine_hour: float
    processing_cost: float
    price_1m_tokens: float | None
    tasks_per_dollar: float | None
    task_completion_s: dict[str, float] | None
    self_placed_steps: int
    wasted_tokens: int


class Run(TypedDict, total=False):
    id: Required[str]
    batch_id: str
    job_id: str
    model: str
    status: Required[str]
    request_counts: Required[Counts]
    unanswered: int
    rerun: int
    ledger: Required[Ledger]
    created_at: int
    ended_at: int | None
    error: str | None


def failed_lines(counted: Batch | Run) -> int:
    """Those that were tried and failed; `request_counts` has the unanswered ones in it too."""
    return counted["request_counts"]["failed"] - counted.get("unanswered", 0)


class Client:
    """`async with Client(url, api_key, tls) as client`."""

    def __init__(self, url: str, api_key: str = "", tls: ClientTls | None = None) -> None:
        """tls: whom to trust instead of whom this machine does, and what to show. Raises
        ConfigError for files that are no certificates."""
        self.url = url.rstrip("/")
        self._tls = tls
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        # This machine is never behind the HTTP proxy of somebody's environment.
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers=headers,
            timeout=TIMEOUT,
            trust_env=not _is_local(url),
            verify=True if tls is None else http_context(tls),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._http.aclose()

    async def models(self) -> list[Model]:
        return cast(list[Model], await self._list("/v1/models"))

    async def ready_models(self) -> list[str]:
        """Those that are served now, asked without a key; none while it is not ready."""
        try:
            answer = await self._json("GET", "/ready")
        except ApiError:
            return []
        return [str(model) for model in answer.get("models", [])]

    async def jobs(self) -> list[Job]:
        """Newest first."""
        return cast(list[Job], await self._list("/imp/v1/jobs", limit=MOST_JOBS))

    async def job(self, job_id: str) -> Job:
        return cast(Job, await self._json("GET", f"/imp/v1/jobs/{_segment(job_id)}"))

    async def create_job(
        self,
        model: str,
        *,
        name: str = "",
        price_per_engine_hour: float | None = None,
        idempotency_key: str = "",
    ) -> Job:
        """price_per_engine_hour: USD; None = the router's default."""
        body: dict[str, Any] = {"model": model, "name": name}
        if price_per_engine_hour is not None:
            body["price_per_engine_hour"] = price_per_engine_hour
        headers = {"idempotency-key": idempotency_key} if idempotency_key else {}
        return cast(Job, await self._json("POST", "/imp/v1/jobs", json=body, headers=headers))

    async def delete_job(self, job_id: str) -> dict[str, Any]:
        return await self._json("DELETE", f"/imp/v1/jobs/{_segment(job_id)}")

    async def upload(self, path: Path, purpose: str = "batch") -> File:
        """Streams the file; it is never in memory as a whole."""
        with path.open("rb") as file:
            form = {"file": (path.name, file, "application/octet-stream")}
            answer = await self._json(
                "POST", "/v1/files", files=form, data={"purpose": purpose}, timeout=TRANSFER
            )
        return cast(File, answer)

    async def files(self, limit: int) -> list[File]:
        return cast(list[File], await self._list("/v1/files", limit=limit))

    async def delete_file(self, file_id: str) -> dict[str, Any]:
        return await self._json("DELETE", f"/v1/files/{_segment(file_id)}")

    async def content(self, file_id: str) -> AsyncGenerator[bytes, None]:
        """The file's bytes in chunks; a break in the middle is an error, never a shorter file."""
        path = f"/v1/files/{_segment(file_id)}/content"
        try:
            async with self._http.stream("GET", path, timeout=TRANSFER) as response:
                if response.is_error:
                    await response.aread()
                    raise _api_error(response)
                async for chunk in response.aiter_bytes(CHUNK_BYTES):
                    yield chunk
        except BROKEN as error:
            raise self._unreachable(error) from error

    async def create_batch(
        self,
        input_file_id: str,
        endpoint: str,
        window: str,
        *,
        job_id: str = "",
        idempotency_key: str = "",
    ) -> Batch:
        body = {
            "input_file_id": input_file_id,
            "endpoint": endpoint,
            "completion_window": window,
            **({"job_id": job_id} if job_id else {}),
        }
        headers = {"idempotency-key": idempotency_key} if idempotency_key else {}
        return cast(Batch, await self._json("POST", "/v1/batches", json=body, headers=headers))

    async def batch(self, batch_id: str) -> Batch:
        return cast(Batch, await self._json("GET", f"/v1/batches/{_segment(batch_id)}"))

    async def batches(self, limit: int) -> list[Batch]:
        return cast(list[Batch], await self._list("/v1/batches", limit=limit))

    async def cancel_batch(self, batch_id: str) -> Batch:
        return cast(Batch, await self._json("POST", f"/v1/batches/{_segment(batch_id)}/cancel"))

    async def results(self, batch_id: str, after: int) -> AsyncGenerator[bytes, None]:
        """Its lines in the order they were recorded, without the first `after`, until it has ended;
        each without its newline. A break is an error; raises Quiet when none came for a minute."""
        path = f"/imp/v1/batches/{_segment(batch_id)}/results"
        query = {"after": str(after), "follow": "true"}
        rest = b""
        try:
            async with self._http.stream("GET", path, params=query, timeout=FOLLOW) as response:
                if response.is_error:
                    await response.aread()
                    raise _api_error(response)
                async for chunk in response.aiter_bytes():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        yield line
        except httpx.ReadTimeout as error:
            raise Quiet from error
        except BROKEN as error:
            raise self._unreachable(error) from error

    async def run(self, run_id: str) -> Run:
        return cast(Run, await self._json("GET", f"/imp/v1/runs/{_segment(run_id)}"))

    async def runs(self, limit: int, job_id: str = "") -> list[Run]:
        query = {"job_id": job_id} if job_id else {}
        return cast(list[Run], await self._list("/imp/v1/runs", limit=limit, **query))

    async def _list(self, path: str, **query: str | int) -> list[dict[str, Any]]:
        answer = await self._json("GET", path, params=query)
        data = answer.get("data")
        if not isinstance(data, list):
            raise ApiError(f"{self.url}{path} answered without a list.", 200, "")
        return data

    async def _json(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, **request: Any
    ) -> dict[str, Any]:
        try:
            response = await self._http.request(method, path, headers=headers, **request)
        except BROKEN as error:
            raise self._unreachable(error) from error
        if response.is_error:
            raise _api_error(response)
        return _object(response) or {}

    def _unreachable(self, error: Exception) -> CliError:
        if (failed := _refused_handshake(error)) is not None:
            return CliError(self._untrusted(failed))
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return NotReachable(
                f"Nothing answers at {self.url}: start an instance with 'impala up', or name "
                "another --url."
            )
        hint = "--url is the router's HTTP port, not a gRPC one ('impala ps' lists both)"
        # A gRPC server answers in frames of HTTP/2, or resets the connection.
        if isinstance(error, httpx.RemoteProtocolError) and "illegal" in str(error):
            return CliError(f"What answers at {self.url} speaks no HTTP/1: {hint}.")
        reason = str(error).rstrip(".") or type(error).__name__
        # So a refusal looks too when the reset comes before what was said, as it may.
        if isinstance(error, httpx.ReadError | httpx.WriteError | httpx.RemoteProtocolError):
            return NotReachable(
                f"The connection to {self.url} broke ({reason}): {hint}{self._tls_hint()}."
            )
        return NotReachable(f"The connection to {self.url} broke: {reason}.")

    def _tls_hint(self) -> str:
        if not self.url.startswith("https:"):
            return "; if it speaks TLS, its URL begins with https:// and --ca names its CA"
        if self._tls is None or self._tls.cert is None:
            return "; if it asks for a certificate, --tls (IMPALA_TLS) names a folder with one"
        return ""

    def _untrusted(self, failed: ssl.SSLError) -> str:
        """What the handshake failed on, and what to do."""
        if NO_CERTIFICATE in str(failed.reason):
            return (
                f"The router at {self.url} asks for a certificate: give a folder with one, as "
                "members have it, with --tls (IMPALA_TLS)."
            )
        if not isinstance(failed, ssl.SSLCertVerificationError):
            return (
                f"What answers at {self.url} speaks no TLS that this client knows "
                f"({failed.reason}): if it speaks none, its URL begins with http://."
            )
        whom = f"by {self._tls.ca}" if self._tls else "by this machine's CAs"
        why = failed.verify_message.rstrip(".")
        return (
            f"The certificate at {self.url} is not vouched for {whom} ({why}): name the CA that "
            "signed it with --ca (IMPALA_CA), and the host as the certificate does."
        )


def _refused_handshake(error: Exception) -> ssl.SSLError | None:
    """What lies under an error, if one side refused the other in TLS, which trying again does not
    mend. A server that dies breaks off too, but says nothing."""
    found: BaseException | None = error
    # Beneath a reset lies the wait for what did not come, an SSLError without a reason.
    while found is not None and not (isinstance(found, ssl.SSLError) and found.reason):
        found = found.__cause__ or found.__context__
    if found is None or isinstance(found, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return None
    told = isinstance(found, ssl.SSLCertVerificationError) or NO_CERTIFICATE in str(found.reason)
    return found if told or isinstance(error, httpx.ConnectError) else None


def _is_local(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _segment(identifier: str) -> str:
    """An id as a path segment: one that holds a slash must not name another resource."""
    return quote(identifier, safe="") or "%20"


def _object(response: httpx.Response) -> dict[str, Any] | None:
    try:
        decoded = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        return None
    return decoded if isinstance(decoded, dict) else None


def _api_error(response: httpx.Response) -> ApiError:
    envelope = (_object(response) or {}).get("error")
    if not isinstance(envelope, dict):
        envelope = {}
    message = str(envelope.get("message") or f"{response.url} answered {response.status_code}.")
    code = str(envelope.get("code") or "")
    if response.status_code == httpx.codes.UNAUTHORIZED:
        message = (
            f"{message.partition(':')[0].rstrip('.')}: give --api-key or set IMPALA_API_KEY; "
            "'impala keys create --account NAME' makes a key."
        )
    if code in LISTS:
        message = f"{message.rstrip('.')}: '{LISTS[code]}' shows those that there are."
    return ApiError(message, response.status_code, code)

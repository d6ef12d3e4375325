"""Which router a command speaks to, and how."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import httpx
import typer

from libs.rpc import ClientTls
from services.cli import options
from services.cli.client import Client
from services.cli.errors import Usage
from services.cli.state_dir import StateDir
from services.cli.tls_files import TlsFiles

Answer = TypeVar("Answer")


def router_url(text: str) -> str:
    """Without what clients of OpenAI's API have at its end, `/v1`. Raises Usage."""
    if not text:
        return ""
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise Usage(f"--url (IMPALA_URL) has {text!r}, which is no URL: {error}.") from error
    if url.scheme not in ("http", "https") or not url.host:
        shown = text.rpartition("://")[2]
        raise Usage(
            f"--url (IMPALA_URL) has {text!r}, but it is a router's HTTP address with its scheme, "
            f"as http://{shown or '127.0.0.1:8080'}."
        )
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


Url = Annotated[
    str,
    typer.Option(
        "--url",
        help="Base URL of a router; else the instance of --state.",
        envvar="IMPALA_URL",
        callback=router_url,
    ),
]
Ca = Annotated[
    Path | None,
    typer.Option(
        "--ca",
        help="CA of the certificate at --url, PEM; else those that this machine trusts.",
        envvar="IMPALA_CA",
    ),
]
Tls = Annotated[
    Path | None,
    typer.Option(
        "--tls",
        help="Folder with tls.crt, tls.key and ca.crt, where --url asks for a certificate.",
        envvar="IMPALA_TLS",
    ),
]


@dataclass(frozen=True, slots=True)
class AtRouter:
    """The options of commands about a router; see options.grouped."""

    url: Url = ""
    ca: Ca = None
    tls: Tls = None
    api_key: options.ApiKey = ""
    state: options.State = None

    def found(self) -> Found:
        """Raises CliError if no URL was given and no instance runs."""
        if self.url:
            return Found(self.url, self._client_tls(), self.api_key)
        instance = StateDir.named(self.state).require()
        files = instance.tls_files
        return Found(instance.url, files.client() if files else None, self.api_key)

    def _client_tls(self) -> ClientTls | None:
        if self.tls is None:
            return ClientTls(self.ca) if self.ca else None
        files = TlsFiles(self.tls)
        return ClientTls(self.ca or files.ca, files.cert, files.key)


@dataclass(frozen=True, slots=True)
class Found:
    """A router. tls: whom to trust there and what to show; None = whom this machine does, and
    nothing."""

    url: str
    tls: ClientTls | None
    api_key: str

    def client(self) -> Client:
        """Raises ConfigError for files that cannot be used."""
        return Client(self.url, self.api_key, self.tls)

    @property
    def grpc_tls(self) -> ClientTls | None:
        """For its gRPC port, which speaks TLS if its HTTP port does."""
        return (self.tls or ClientTls()) if self.url.startswith("https:") else None


def with_client(router: AtRouter, work: Callable[[Client], Awaitable[Answer]]) -> Answer:
    """Does the work with a client of the router."""

    async def connected() -> Answer:
        async with router.found().client() as client:
            return await work(client)

    return asyncio.run(connected())

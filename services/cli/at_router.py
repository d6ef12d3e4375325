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


@dataclass(frozen=True, slots=True)
class AtRouter:
    """The options of commands about a router; see options.grouped."""

    url: Url = ""
    ca: Ca = None
    api_key: options.ApiKey = ""
    state: options.State = None

    def found(self) -> Found:
        """Raises CliError if no URL was given and no instance runs."""
        if self.url:
            return Found(self.url, self.ca, self.api_key)
        instance = StateDir.named(self.state).require()
        files = instance.tls_files
        return Found(instance.url, files.ca if files else None, self.api_key)


@dataclass(frozen=True, slots=True)
class Found:
    """A router. ca: whom to trust there; None = whom this machine does."""

    url: str
    ca: Path | None
    api_key: str

    def client(self) -> Client:
        """Raises ConfigError for a CA file that cannot be used."""
        return Client(self.url, self.api_key, self.ca)

    @property
    def grpc_tls(self) -> ClientTls | None:
        """For its gRPC port, which speaks TLS if its HTTP port does."""
        return ClientTls(self.ca) if self.url.startswith("https:") else None


def with_client(router: AtRouter, work: Callable[[Client], Awaitable[Answer]]) -> Answer:
    """Does the work with a client of the router."""

    async def connected() -> Answer:
        async with router.found().client() as client:
            return await work(client)

    return asyncio.run(connected())

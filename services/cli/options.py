"""Options that several commands have, and what they lead to."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar

import httpx
import typer

from libs.rpc import ClientTls
from services.cli.client import Client
from services.cli.cluster import Etcds
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


def finite(value: float | None) -> float | None:
    """For every option that takes a float: its parser takes "inf" and "nan", JSON does not."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no finite number")
    return value


State = Annotated[
    Path | None,
    typer.Option("--state", help="State folder of the instance.", envvar="IMPALA_STATE"),
]
Url = Annotated[
    str,
    typer.Option(
        "--url",
        help="Base URL of a router; else the instance of --state.",
        envvar="IMPALA_URL",
        callback=router_url,
    ),
]
ApiKey = Annotated[
    str, typer.Option("--api-key", help="API key, if the router asks.", envvar="IMPALA_API_KEY")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Window = Annotated[
    str, typer.Option("--window", help='Completion window: "24h", "<n>h" or "unlimited".')
]
Limit = Annotated[int, typer.Option("--limit", help="How many at most.", min=1, max=100)]
Etcd = Annotated[
    str,
    typer.Option("--etcd", help="etcd, host:port; else the one of --state.", envvar="IMPALA_ETCD"),
]
EtcdCa = Annotated[
    Path | None,
    typer.Option(
        "--etcd-ca",
        help="CA of etcd's certificate, PEM; with it etcd is spoken to in TLS.",
        envvar="IMPALA_ETCD_CA",
    ),
]
EtcdCert = Annotated[
    Path | None,
    typer.Option("--etcd-cert", help="Certificate to show etcd.", envvar="IMPALA_ETCD_CERT"),
]
EtcdKey = Annotated[
    Path | None,
    typer.Option("--etcd-key", help="Its private key.", envvar="IMPALA_ETCD_KEY"),
]

EtcdUser = Annotated[
    str, typer.Option("--etcd-user", help="User, where it asks for one.", envvar="IMPALA_ETCD_USER")
]
EtcdPasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--etcd-password-file",
        help="File with that user's password.",
        envvar="IMPALA_ETCD_PASSWORD_FILE",
    ),
]


def client_of(url: str, api_key: str, state: Path | None) -> Client:
    """For the URL, or for the instance of the state folder. Raises CliError if none runs there."""
    return Client(url or StateDir.named(state).require().url, api_key)


def with_client(
    url: str, api_key: str, state: Path | None, work: Callable[[Client], Awaitable[Answer]]
) -> Answer:
    """Does the work with a client as `client_of` makes it."""

    async def connected() -> Answer:
        async with client_of(url, api_key, state) as client:
            return await work(client)

    return asyncio.run(connected())


def etcd_of(
    etcd: str,
    state: Path | None,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    user: str,
    password_file: Path | None,
) -> Etcds:
    """Raises CliError if none was named and no instance runs, Usage for what cannot be meant."""
    named = etcd or StateDir.named(state).require().etcd
    endpoints = [each.strip() for each in named.split(",")]
    for each in endpoints:
        if "/" in each or not each.rpartition(":")[2].isdecimal():
            raise Usage(
                f"--etcd has {each!r}, but an endpoint is host:port, without a scheme; TLS is what "
                "--etcd-ca asks for."
            )
    if (cert is None) != (key is None):
        raise Usage("--etcd-cert and --etcd-key go together: give both or neither.")
    for path in (ca, cert, key):
        if path is not None and not path.is_file():
            raise Usage(f"The TLS file {path} does not exist.")
    if (not user) != (password_file is None):
        raise Usage("--etcd-user and --etcd-password-file go together: give both.")
    return Etcds(endpoints, ClientTls(ca, cert, key) if ca or cert else None, user, password_file)

"""impala keys: API keys and their accounts, kept in etcd as hashes."""

from __future__ import annotations

import secrets
import time
from dataclasses import asdict
from typing import Annotated

import typer

from libs.cluster.accounts import ApiKey, create_key, list_keys, revoke_key
from libs.cluster.client import EtcdClient
from libs.cluster.errors import BadAccountName
from services.cli import options
from services.cli.cluster import AtEtcd, with_etcd
from services.cli.errors import CliError, Usage
from services.cli.options import grouped
from services.cli.output import clock, print_json, say, table

app = typer.Typer(help="API keys of accounts.", no_args_is_help=True)

TOKEN_BYTES = 32
SHOWN = 12


@app.command()
@grouped(cluster=AtEtcd)
def create(
    account: Annotated[
        str,
        typer.Option(
            help="Whose key; the account is made if it is new. A name is at most 64 letters, "
            "digits, dots, underscores and hyphens."
        ),
    ],
    cluster: AtEtcd,
    name: Annotated[str, typer.Option(help="For people.")] = "",
    as_json: options.AsJson = False,
) -> int:
    """Make a key and print it: it is stored nowhere and shown this once."""

    async def work(client: EtcdClient) -> str:
        token, now = secrets.token_bytes(TOKEN_BYTES), int(time.time())
        try:
            return await create_key(client, account, name, token_bytes=token, now=now)
        except BadAccountName as error:
            raise Usage(f"--account {error.message}") from error

    key = with_etcd(
        cluster.found(),
        work,
    )
    if as_json:
        print_json({"key": key, "account": account, "name": name})
    else:
        say("The key is shown this once:")
        print(key)
    return 0


@app.command("list")
@grouped(cluster=AtEtcd)
def list_all(
    cluster: AtEtcd,
    account: Annotated[str | None, typer.Option(help="Only this account's.")] = None,
    as_json: options.AsJson = False,
) -> int:
    """List keys, oldest first."""
    keys = with_etcd(
        cluster.found(),
        lambda client: list_keys(client, account),
    )
    if as_json:
        print_json([asdict(key) for key in keys])
        return 0
    table(("id", "account", "name", "key", "created", "revoked"), map(_row, keys))
    return 0


@app.command()
@grouped(cluster=AtEtcd)
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="As 'impala keys list' shows it.")],
    cluster: AtEtcd,
) -> int:
    """Refuse a key from now on."""

    async def work(client: EtcdClient) -> ApiKey:
        found = [key for key in await list_keys(client) if key.hash.startswith(key_id)]
        if len(found) != 1:
            how_many = "No key has" if not found else f"{len(found)} keys have"
            raise CliError(f"{how_many} the id {key_id}: see 'impala keys list'.")
        return await revoke_key(client, found[0].hash, now=int(time.time()))

    key = with_etcd(
        cluster.found(),
        work,
    )
    say(f"The key ...{key.hint} of {key.account} is revoked")
    return 0


def _row(key: ApiKey) -> tuple[object, ...]:
    return (
        key.hash[:SHOWN],
        key.account,
        key.name,
        f"...{key.hint}",
        clock(key.created_at),
        clock(key.revoked_at),
    )

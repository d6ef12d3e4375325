"""Commands that speak to the cluster's etcd, and to members that are found there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from libs.cluster.client import EtcdClient
from libs.cluster.errors import ClusterUnavailable, PermissionRefused
from libs.cluster.password import password_in
from libs.rpc import ClientTls
from services.cli import options
from services.cli.errors import CliError, Usage
from services.cli.state_dir import StateDir
from services.cli.tls_files import TlsFiles

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class AtEtcd:
    """The options of commands about a cluster, which are the services' own ones; see
    options.grouped. Without `etcd` it is the instance of `state`, which says by itself whether it
    speaks TLS."""

    etcd: Annotated[
        str,
        typer.Option(
            "--etcd", help="etcd, host:port; else the one of --state.", envvar="IMPALA_ETCD"
        ),
    ] = ""
    tls: Annotated[
        Path | None,
        typer.Option(
            "--tls",
            help="Folder with tls.crt, tls.key and ca.crt, as members have one: TLS to etcd and to "
            "them.",
            envvar="IMPALA_TLS",
        ),
    ] = None
    tls_name: Annotated[
        str,
        typer.Option(
            "--tls-name",
            help="Name that the certificates of all members bear; empty: each its host.",
            envvar="IMPALA_TLS_NAME",
        ),
    ] = ""
    etcd_plain: Annotated[
        bool,
        typer.Option(
            "--etcd-plain",
            help="Speak to etcd without TLS, although --tls is given.",
            envvar="IMPALA_ETCD_PLAIN",
        ),
    ] = False
    etcd_ca: Annotated[
        Path | None,
        typer.Option(
            "--etcd-ca",
            help="CA of etcd's certificate, PEM; with it etcd is spoken to in TLS.",
            envvar="IMPALA_ETCD_CA",
        ),
    ] = None
    etcd_cert: Annotated[
        Path | None,
        typer.Option("--etcd-cert", help="Certificate to show etcd.", envvar="IMPALA_ETCD_CERT"),
    ] = None
    etcd_key: Annotated[
        Path | None,
        typer.Option("--etcd-key", help="Its private key.", envvar="IMPALA_ETCD_KEY"),
    ] = None
    etcd_user: Annotated[
        str,
        typer.Option("--etcd-user", help="User, where it asks for one.", envvar="IMPALA_ETCD_USER"),
    ] = ""
    etcd_password_file: Annotated[
        Path | None,
        typer.Option(
            "--etcd-password-file",
            help="File with that user's password.",
            envvar="IMPALA_ETCD_PASSWORD_FILE",
        ),
    ] = None
    state: options.State = None

    def found(self) -> Etcds:
        """Raises CliError if none was named and no instance runs, Usage for what cannot be
        meant."""
        if (not self.etcd_user) != (self.etcd_password_file is None):
            raise Usage("--etcd-user and --etcd-password-file go together: give both.")
        user, password_file = self.etcd_user, self.etcd_password_file
        instance = None if self.etcd else StateDir.named(self.state).require()
        if instance is not None and instance.tls_files is not None:
            tls = instance.tls_files.client()
            return Etcds([instance.etcd], tls, tls, user, password_file)
        peers, named = self._peer_tls(), instance.etcd if instance else self.etcd
        return Etcds(_endpoints(named), self._etcd_tls(peers), peers, user, password_file)

    def _peer_tls(self) -> ClientTls | None:
        if self.tls is None:
            return None
        files = TlsFiles(self.tls)
        _check_there(files.cert, files.key, files.ca)
        return files.client(self.tls_name)

    def _etcd_tls(self, peers: ClientTls | None) -> ClientTls | None:
        ca, cert, key = self.etcd_ca, self.etcd_cert, self.etcd_key
        if (cert is None) != (key is None):
            raise Usage("--etcd-cert and --etcd-key go together: give both or neither.")
        _check_there(ca, cert, key)
        if ca or cert:
            return ClientTls(ca, cert, key)
        if peers is None or self.etcd_plain:
            return None
        return ClientTls(peers.ca, peers.cert, peers.key)


@dataclass(frozen=True, slots=True)
class Etcds:
    """endpoints: host:port. tls: None = without. peers: how members are dialled, None = without.
    user: empty = none, or the certificate's name."""

    endpoints: Sequence[str]
    tls: ClientTls | None
    peers: ClientTls | None
    user: str = ""
    password_file: Path | None = None

    def client(self) -> EtcdClient:
        file = self.password_file
        return EtcdClient(
            self.endpoints,
            tls=self.tls,
            user=self.user or None,
            password=None if file is None else password_in(file),
        )


def with_etcd(etcd: Etcds, work: Callable[[EtcdClient], Awaitable[Answer]]) -> Answer:
    """Does the work with a client; raises CliError if no endpoint answers, or none lets us in."""

    async def connected() -> Answer:
        async with etcd.client() as client:
            return await work(client)

    try:
        return asyncio.run(connected())
    except PermissionRefused as error:
        raise CliError(f"{error}.") from error
    except ClusterUnavailable as error:
        raise CliError(
            f"etcd at {','.join(etcd.endpoints)} does not answer: start it, or give another --etcd"
            f"{_tls_hint(etcd.tls)}."
        ) from error


def _tls_hint(tls: ClientTls | None) -> str:
    """A handshake that fails looks to a client of etcd as one that is not there."""
    if tls is None:
        return " (one that speaks TLS: --tls or --etcd-ca)"
    if tls.cert is None:
        return " (one that asks for a certificate: --tls or --etcd-cert)"
    return f" (it must be one whose certificate {tls.ca} vouches for, for the host of --etcd)"


def _endpoints(named: str) -> list[str]:
    endpoints = [each.strip() for each in named.split(",")]
    for each in endpoints:
        if "/" in each or not each.rpartition(":")[2].isdecimal():
            raise Usage(
                f"--etcd has {each!r}, but an endpoint is host:port, without a scheme; TLS is what "
                "--tls and --etcd-ca ask for."
            )
    return endpoints


def _check_there(*paths: Path | None) -> None:
    for path in paths:
        if path is not None and not path.is_file():
            raise Usage(f"The TLS file {path} does not exist.")

"""The settings that every service has, so that each is run the same way."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass
from typing import ClassVar

from libs.config.exposure import check_exposure
from libs.config.fields import ConfigError, port_setting, setting


@dataclass(frozen=True, kw_only=True)
class ServiceConfig:
    """Flags common to every Impala service."""

    members_only: ClassVar[bool] = True
    """Whether all who call are members of the cluster, which only mutual TLS can tell."""

    host: str = setting(
        "127.0.0.1", "Address to listen on; anything but loopback needs --tls or --insecure."
    )
    port: int = port_setting(0)
    advertise: str = setting("", "host:port that others reach this member by; empty: as bound.")
    etcd: tuple[str, ...] = setting(
        ("127.0.0.1:2379",), "etcd endpoints, host:port separated by commas."
    )
    etcd_plain: bool = setting(False, "Speak to etcd without TLS, although --tls is given.")
    etcd_ca: pathlib.Path | None = setting(
        None,
        "CA of etcd's certificate, PEM; with it etcd is spoken to in TLS.",
    )
    etcd_cert: pathlib.Path | None = setting(
        None, "Certificate to show etcd, PEM; its common name is etcd's user."
    )
    etcd_key: pathlib.Path | None = setting(None, "That certificate's private key, PEM.")
    etcd_user: str = setting(
        "", "User of an etcd that asks for one; empty: none, or the certificate's name."
    )
    etcd_password_file: pathlib.Path | None = setting(
        None, "File with that user's password; read again at each login."
    )
    etcd_wait_s: float = setting(
        30.0,
        "Seconds that etcd may take to answer at the start, before this process gives up.",
        minimum=0,
    )
    member: str = setting("", "This member's name in the cluster; empty: host and port make it.")
    tls: pathlib.Path | None = setting(
        None,
        "Folder with tls.crt, tls.key and ca.crt: TLS for this server, for the calls to its peers, "
        "and for etcd. The files below stand for single ones of it.",
    )
    tls_cert: pathlib.Path | None = setting(None, "Server certificate chain, PEM.")
    tls_key: pathlib.Path | None = setting(None, "The certificate's private key, PEM.")
    tls_ca: pathlib.Path | None = setting(
        None, "CA that peers are checked against, PEM; with it clients must show a certificate."
    )
    tls_name: str = setting(
        "",
        "Name that the certificates of all members bear, expected instead of the host that is "
        "dialled; empty: that host.",
    )
    insecure: bool = setting(False, "Serve beyond loopback without TLS (a trusted network only).")
    drain_s: float = setting(
        10.0, "Seconds that running calls may take after SIGTERM; 0 cuts them.", minimum=0
    )
    metrics_port: int = setting(
        -1, "Port of Prometheus metrics; 0 picks a free one, -1: none.", minimum=-1, maximum=65535
    )
    log_level: str = setting(
        "info", "Least severe message shown.", choices=("debug", "info", "warning", "error")
    )
    log_json: bool = setting(False, "Log JSON lines instead of text for people.")

    def __post_init__(self) -> None:
        etcd_files = (self.etcd_ca, self.etcd_cert, self.etcd_key)
        shared = () if self.etcd_plain or any(etcd_files) else ("etcd",)
        fill_from_folder(self, self.tls, "tls", *shared)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("--tls-cert and --tls-key go together: give both or neither.")
        if (self.etcd_cert is None) != (self.etcd_key is None):
            raise ConfigError("--etcd-cert and --etcd-key go together: give both or neither.")
        if (not self.etcd_user) != (self.etcd_password_file is None):
            raise ConfigError(
                "--etcd-user and --etcd-password-file go together: give both or none."
            )
        if self.etcd_password_file is not None and not self.etcd_password_file.is_file():
            raise ConfigError(f"The password file {self.etcd_password_file} does not exist.")
        check_files(self, "tls", "etcd")
        check_exposure(self.host, protected=self._protected, remedy=self._remedy)
        if not self.etcd:
            raise ConfigError("--etcd names no endpoint; give host:port.")
        for endpoint in self.etcd:
            if not endpoint.rpartition(":")[2].isdecimal():
                raise ConfigError(f"--etcd has {endpoint!r}, but an endpoint is host:port.")

    @property
    def _protected(self) -> bool:
        asks_who_calls = self.tls_ca is not None or not self.members_only
        return self.insecure or (self.tls_cert is not None and asks_who_calls)

    @property
    def _remedy(self) -> str:
        missing = "--tls" if self.tls_cert is None else "--tls-ca, for members' certificates"
        return f"give {missing}, or --insecure where the network is trusted"


FOLDER = {"cert": "tls.crt", "key": "tls.key", "ca": "ca.crt"}
"""Files of a `--tls` folder, by what they are."""


def fill_from_folder(config: object, folder: pathlib.Path | None, *prefixes: str) -> None:
    """The files `{prefix}_cert`, `_key` and `_ca` of a frozen config that is being made, from a
    folder as Kubernetes makes it of a TLS secret, where they are not given by themselves."""
    if folder is None:
        return
    if not folder.is_dir():
        raise ConfigError(f"--tls names {folder}, which is no folder.")
    for prefix in prefixes:
        for part, file in FOLDER.items():
            if getattr(config, f"{prefix}_{part}") is None:
                object.__setattr__(config, f"{prefix}_{part}", folder / file)


def check_files(config: object, *prefixes: str) -> None:
    """That the files `{prefix}_cert`, `_key` and `_ca` are there. Raises ConfigError, which names
    the setting that led to the one that is not."""
    for prefix in prefixes:
        for part, file in FOLDER.items():
            path: pathlib.Path | None = getattr(config, f"{prefix}_{part}")
            if path is None or path.is_file():
                continue
            folder = getattr(config, "tls", None)
            if folder is not None and path == folder / file:
                raise ConfigError(f"The folder {folder} of --tls has no file {file}.")
            raise ConfigError(f"The file {path} of --{prefix}-{part} does not exist.")

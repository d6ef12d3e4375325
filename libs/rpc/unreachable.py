"""Why a connection could not be made: gRPC's chain of causes in words, with what to check.

gRPC tells of a failed handshake as OpenSSL does, and of a certificate that the other side refuses
only that the socket was closed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

_FAILED = re.compile(r"failed to connect to all addresses; last error: [A-Z_]+: (.+)", re.DOTALL)
_PEER = re.compile(r"(?:ipv4|ipv6|unix):(\S+): (.+)", re.DOTALL)
_UNRESOLVED = re.compile(r"errors resolving (\S+): ")
_NO_TRUST = ("CERTIFICATE_VERIFY_FAILED", "certificate signature failure")
_HUNG_UP = ("Socket closed", "Connection reset by peer", "Broken pipe")


@dataclass(frozen=True, slots=True)
class Unreachable:
    """peer: host:port, or its address. why: some words without a full stop."""

    peer: str
    why: str


def unreachable(details: str, settings: Literal["tls", "etcd"] = "tls") -> Unreachable | None:
    """What a status's details tell; None where they tell of no failure to connect.

    settings: how those begin that, besides --tls, are to be checked.
    """
    if found := _UNRESOLVED.match(details):
        return Unreachable(found[1], "its host has no address")
    if not (failed := _FAILED.match(details)):
        return None
    if not (peer := _PEER.match(failed[1])):
        return Unreachable("a peer", _last(failed[1]))
    return Unreachable(unquote(peer[1]), _cause(peer[2], settings))


def _cause(text: str, settings: str) -> str:
    ca, cert = f"--{settings}-ca", f"--{settings}-cert"
    if "certificate has expired" in text:
        return "its certificate has expired, or this machine's clock is wrong"
    if "certificate is not yet valid" in text:
        return "its certificate is not valid yet, or this machine's clock is wrong"
    if any(sign in text for sign in _NO_TRUST):
        return f"its certificate is not of the CA that is trusted here: check --tls or {ca}"
    if "Hostname Verification Check failed" in text:
        other = ", or tell by --tls-name which it bears" if settings == "tls" else ""
        return f"its certificate is for another name: have it issued for the one dialled{other}"
    if "_ALERT_" in text:
        return f"it refuses this side's certificate, or wants one: check --tls or {cert}"
    if "WRONG_VERSION_NUMBER" in text:
        return "it speaks no TLS, and this side does: check --tls on both sides"
    if any(sign in text for sign in _HUNG_UP):
        return (
            "it hung up at once, as one does that speaks TLS only, or that refuses this side's "
            f"certificate: check --tls, or {cert} here and {ca} there"
        )
    return _last(text)


def _last(text: str) -> str:
    """The most concrete part of the chain."""
    parts = [part.strip(" .)]") for part in text.split(": ")]
    told = [part for part in parts if part and part != "OK"]
    return told[-1].lower() if told else "no answer"

"""The rule that nothing unprotected is served beyond this machine."""

from __future__ import annotations

import ipaddress

from libs.config.fields import ConfigError


def is_loopback(host: str) -> bool:
    """True when only this machine can connect to `host`; of names, only localhost is taken so."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def check_exposure(host: str, *, protected: bool, remedy: str = "give --tls") -> None:
    """Refuse to listen beyond loopback without protection.

    protected: TLS, API keys, or the operator's explicit word, whichever guards this listener.
    Raises ConfigError with `remedy` as what to do.
    """
    if not protected and not is_loopback(host):
        raise ConfigError(
            f"Listening on {host or 'every address'} (--host) would serve other machines "
            f"unprotected: {remedy}, or listen on 127.0.0.1."
        )

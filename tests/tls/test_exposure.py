"""Who may be served beyond this machine, and what a service says that is started wrongly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from libs.testing.rpc import free_port
from libs.testing.tls import Authority, MountedSecret

SERVICES = ("kvstore", "leap", "scheduler", "modelserver", "router")
NOWHERE = ("--etcd", "127.0.0.1:9", "--etcd-wait-s", "0")


@pytest.fixture
def secret(tmp_path: Path) -> MountedSecret:
    secret = MountedSecret(tmp_path / "secret")
    secret.renew(Authority(tmp_path / "ca"))
    return secret


def end_of(service: str, folder: Path, *flags: str) -> tuple[int, list[str]]:
    """Exit code and what was said, of a service without an etcd."""
    port = ("--port", str(free_port()))
    done = subprocess.run(
        [sys.executable, "-P", "-m", f"services.{service}.main", *port, *NOWHERE, *flags],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr.splitlines()


@pytest.mark.parametrize("service", SERVICES)
def test_no_service_serves_other_machines_unless_it_is_told_to(
    service: str, tmp_path: Path
) -> None:
    code, said = end_of(service, tmp_path, "--host", "0.0.0.0")
    assert (code, said) == (
        2,
        [
            f"{service}: Listening on 0.0.0.0 (--host) would serve other machines unprotected: "
            "give --tls, or --insecure where the network is trusted, or listen on 127.0.0.1."
        ],
    )


@pytest.mark.slow
@pytest.mark.parametrize("service", SERVICES)
def test_certificates_that_cannot_be_used_are_one_sentence_at_the_start(
    service: str, tmp_path: Path, secret: MountedSecret
) -> None:
    other = Authority(tmp_path / "other").issue("other")[1]
    secret.key.write_bytes(other.read_bytes())
    code, said = end_of(service, tmp_path, "--tls", str(secret.path))
    assert code == 2 and len(said) == 1
    assert said[0] == (
        f"{service}: The certificate {secret.cert} and the key {secret.key} cannot be used: they "
        "do not belong together."
    )


def test_without_keys_a_router_serves_no_other_machine_under_tls_either(
    tmp_path: Path, secret: MountedSecret
) -> None:
    tls = ("--tls", str(secret.path), "--insecure")
    code, said = end_of("router", tmp_path, "--host", "0.0.0.0", "--no-auth", *tls)
    assert code == 2 and len(said) == 1
    assert said[0].startswith("router: --no-auth is for loopback only, ")

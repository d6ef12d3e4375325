"""The stores that the contract is tested on: a folder, memory, and an S3 server process."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import boto3  # type: ignore[import-untyped]
import pytest

from libs.objects import ObjectStore, open_store

KEYS = {"access_key_id": "test", "secret_access_key": "test", "region": "us-east-1"}


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an S3 server with the bucket `bucket`."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("s3") / "log"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as out:
        server = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        _wait_for_port(server, port, log)
        url = f"http://127.0.0.1:{port}"
        s3_client(url).create_bucket(Bucket="bucket")
        yield url
    finally:
        server.terminate()
        server.wait(10)


def s3_client(endpoint: str):  # type: ignore[no-untyped-def]  # boto3 has no types
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=KEYS["region"],
        aws_access_key_id=KEYS["access_key_id"],
        aws_secret_access_key=KEYS["secret_access_key"],
    )


def _wait_for_port(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            wait_briefly(server)
    raise AssertionError(f"no S3 server on port {port}: {log.read_text()}")


def wait_briefly(process: subprocess.Popen[bytes]) -> None:
    """Waits 50 ms, or less if the process ends."""
    try:
        process.wait(0.05)
    except subprocess.TimeoutExpired:
        return


@pytest.fixture(params=["folder", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "folder":
        return open_store(str(tmp_path / "objects"))
    if request.param == "memory":
        return open_store("memory://")
    endpoint = request.getfixturevalue("s3_endpoint")
    return open_store(f"s3://bucket/{tmp_path.name}", KEYS | {"endpoint": endpoint})

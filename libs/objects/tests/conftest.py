"""The stores that the contract is tested on: a folder, memory, and an S3 server process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import boto3  # type: ignore[import-untyped]
import pytest

from libs.objects import ObjectStore, open_store
from libs.testing.s3 import KEYS, S3Process


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Process]:
    with S3Process() as server:
        yield server


@pytest.fixture
def s3_endpoint(s3: S3Process) -> str:
    """The URL of an S3 server with the bucket `bucket`."""
    return s3.endpoint


def s3_client(endpoint: str):  # type: ignore[no-untyped-def]  # boto3 has no types
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=KEYS["region"],
        aws_access_key_id=KEYS["access_key_id"],
        aws_secret_access_key=KEYS["secret_access_key"],
    )


@pytest.fixture(params=["folder", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "folder":
        return open_store(str(tmp_path / "objects"))
    if request.param == "memory":
        return open_store("memory://")
    endpoint = request.getfixturevalue("s3_endpoint")
    return open_store(f"s3://bucket/{tmp_path.name}", KEYS | {"endpoint": endpoint})

"""One cluster whose engines break on certain words, supervised as `impala up` does."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from services.router.tests.tiny_model import make_tiny_model
from tests.robustness.cluster import Cluster, Shape
from tests.runs.api import Api, api_of

HANGS, KILLS = "HANG", "KILL"
STEP_LIMIT_S = 2.0
LOSSES = 5
FLAGS = {
    "modelserver": ["--hang-on", HANGS, "--die-on", KILLS, "--step-limit-s", f"{STEP_LIMIT_S}"],
    "scheduler": ["--line-losses", str(LOSSES)],
}


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    folder = tmp_path_factory.mktemp("runs") / "model"
    make_tiny_model(folder)
    shape = Shape(model=str(folder), kv_bytes="1MiB", proxied=False, flags=FLAGS)
    async with Cluster(shape) as cluster:
        yield cluster
        cluster.keep = cluster.complaints() != {}
        assert cluster.complaints() == {}, cluster.folder


@pytest_asyncio.fixture(loop_scope="package")
async def api(cluster: Cluster) -> AsyncIterator[Api]:
    """Of the first router."""
    async with api_of(cluster.http["router-1"]) as api:
        yield api

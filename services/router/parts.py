"""The router's application objects, as every handler of either surface has them."""

from __future__ import annotations

from dataclasses import dataclass

from libs.cluster.secret import ClusterSecret
from libs.obs import Metrics
from services.router.access import Access
from services.router.batches import Batches
from services.router.completions import Completions
from services.router.execution import Executor
from services.router.files import Files
from services.router.fleets import Fleets
from services.router.indexing import Indexer
from services.router.jobs import Jobs
from services.router.request_bytes import RequestBytes
from services.router.results import Results
from services.router.runs import Runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Shared by HTTP and gRPC."""

    access: Access
    files: Files
    batches: Batches
    jobs: Jobs
    runs: Runs
    fleets: Fleets
    completions: Completions
    results: Results
    indexer: Indexer
    executor: Executor
    request_bytes: RequestBytes
    cluster_secret: ClusterSecret
    """What callers of internal services show."""
    metrics: Metrics

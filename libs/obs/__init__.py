"""What a program says about itself: log lines on stderr, metrics for Prometheus."""

from libs.obs.logs import setup_logging
from libs.obs.metrics import (
    INTER_TOKEN_BUCKETS,
    LATENCY_BUCKETS,
    METRICS,
    PER_TOKEN_BUCKETS,
    TASK_BUCKETS,
    TTFT_BUCKETS,
    Metrics,
    metrics_text,
    serve_metrics,
)

__all__ = [
    "INTER_TOKEN_BUCKETS",
    "LATENCY_BUCKETS",
    "METRICS",
    "PER_TOKEN_BUCKETS",
    "TASK_BUCKETS",
    "TTFT_BUCKETS",
    "Metrics",
    "metrics_text",
    "serve_metrics",
    "setup_logging",
]

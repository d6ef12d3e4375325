"""What the router counts: time to first token, per token, between tokens; requests and tokens."""

from __future__ import annotations

from libs.obs import INTER_TOKEN_BUCKETS, PER_TOKEN_BUCKETS, TASK_BUCKETS, TTFT_BUCKETS, Metrics


class Meter:
    """Histograms are in seconds. `kind` is "single" or "batch"."""

    def __init__(self, metrics: Metrics) -> None:
        self.ttft = metrics.histogram(
            "impala_ttft_seconds",
            "From a request's arrival to its first sampled token.",
            ["model", "kind"],
            TTFT_BUCKETS,
        )
        self.tpot = metrics.histogram(
            "impala_tpot_seconds",
            "Time per output token after the first, mean over one answer.",
            ["model", "kind"],
            PER_TOKEN_BUCKETS,
        )
        self.itl = metrics.histogram(
            "impala_itl_seconds",
            "Between two messages with tokens of one streamed answer.",
            ["model", "kind"],
            INTER_TOKEN_BUCKETS,
        )
        self.duration = metrics.histogram(
            "impala_request_seconds",
            "From a request's arrival to its last token.",
            ["model", "kind"],
            TASK_BUCKETS,
        )
        self.requests = metrics.counter(
            "impala_requests",
            "Requests for generation ended, by HTTP status; 499 = the client left.",
            ["model", "kind", "code"],
        )
        self.tokens = metrics.counter(
            "impala_tokens",
            "Tokens of answered requests: prompt, cached (part of prompt), completion.",
            ["model", "kind", "type"],
        )
        self.running = metrics.gauge(
            "impala_requests_running", "Requests for generation under way.", ["kind"]
        )
        self.self_placed = metrics.counter(
            "impala_self_placed_steps", "Steps that ran without a scheduler's grant.", ["model"]
        )

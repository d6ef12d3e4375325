"""Prometheus metrics, get-or-create by name, with buckets that suit serving language models."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Sequence
from socketserver import ThreadingMixIn
from typing import TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from libs.errors import StartupError

log = logging.getLogger(__name__)

# Seconds. Agents wait minutes happily, so the time to a first token is resolved from 5 ms to 10
# minutes; a token's time from 0.5 ms (a GPU batch) to seconds (a loaded CPU).
TTFT_BUCKETS = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 320.0, 640.0),
)
INTER_TOKEN_BUCKETS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0),
)
PER_TOKEN_BUCKETS = INTER_TOKEN_BUCKETS
LATENCY_BUCKETS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)
TASK_BUCKETS = (0.5, 1, 2, 5, 10, 20, 40, 60, 120, 300, 600, 1200, 3600, 7200, 14400, 43200, 86400)

_M = TypeVar("_M", Counter, Gauge, Histogram)


class Metrics:
    """The metrics of one process (or of one test), by name.

    Asking twice for a name gives the same metric, so that a module can be used by two servers in
    one process; asking for it with another kind or other labels is a bug and raises ValueError.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        self._made: dict[str, tuple[object, tuple[str, ...]]] = {}

    def counter(self, name: str, help: str, labels: Sequence[str] = ()) -> Counter:
        """A count that only grows; its exposed name ends in `_total`."""
        return self._get(Counter, name, help, labels)

    def gauge(self, name: str, help: str, labels: Sequence[str] = ()) -> Gauge:
        """A value that goes up and down."""
        return self._get(Gauge, name, help, labels)

    def histogram(
        self,
        name: str,
        help: str,
        labels: Sequence[str] = (),
        buckets: Sequence[float] = LATENCY_BUCKETS,
    ) -> Histogram:
        """A distribution; `buckets` are upper bounds in the metric's unit, ascending."""
        known = self._known(Histogram, name, labels)
        if known is None:
            known = Histogram(name, help, labels, buckets=buckets, registry=self.registry)
            self._made[name] = (known, tuple(labels))
        return known

    def text(self) -> str:
        """The exposition format that Prometheus scrapes."""
        return generate_latest(self.registry).decode()

    def _get(self, kind: type[_M], name: str, help: str, labels: Sequence[str]) -> _M:
        known = self._known(kind, name, labels)
        if known is None:
            known = kind(name, help, labels, registry=self.registry)
            self._made[name] = (known, tuple(labels))
        return known

    def _known(self, kind: type[_M], name: str, labels: Sequence[str]) -> _M | None:
        metric, made_labels = self._made.get(name, (None, ()))
        if metric is None:
            return None
        if not isinstance(metric, kind) or made_labels != tuple(labels):
            raise ValueError(f"the metric {name} exists with another kind or other labels")
        return metric


# The process's own; it also carries prometheus_client's process and garbage-collector metrics.
METRICS = Metrics(prometheus_client.REGISTRY)


def metrics_text() -> str:
    """The process's metrics, for an HTTP handler to answer."""
    return METRICS.text()


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: a scrape every few seconds is no news."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A scraper that hangs up, or knows no certificate, is its own trouble."""
        log.debug("a scrape failed", exc_info=True, extra={"client": client_address})


class _Server6(_Server):
    address_family = socket.AF_INET6


def serve_metrics(
    port: int,
    host: str = "127.0.0.1",
    metrics: Metrics = METRICS,
    tls: ssl.SSLContext | None = None,
) -> int:
    """Answer GET /metrics from a daemon thread; returns the port bound (0 picks a free one).

    Raises StartupError when the port cannot be bound.
    """
    app = prometheus_client.make_wsgi_app(metrics.registry)
    kind = _Server6 if ":" in host else _Server
    try:
        server = make_server(host.strip("[]"), port, app, kind, _Handler)
    except OSError as error:
        raise StartupError(
            f"The metrics port {port} on {host} cannot be used ({error.strerror}); give another "
            "--metrics-port."
        ) from None
    if tls is not None:
        # The handshake is made in the request's own thread: a slow one holds up nobody.
        server.socket = tls.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return int(server.server_port)

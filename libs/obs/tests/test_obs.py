"""Log lines for people and machines; metrics by name."""

import io
import json
import logging
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.errors import StartupError
from libs.obs import TTFT_BUCKETS, Metrics, metrics_text, serve_metrics, setup_logging
from libs.testing.tls import Authority


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def test_people_read_one_line_with_its_fields(stream: io.StringIO) -> None:
    setup_logging("kvstore", stream=stream)
    logging.getLogger("x").info("evicted %d blocks", 3, extra={"bytes": 9, "why": "no room"})
    assert stream.getvalue()[12:] == ' INFO    kvstore evicted 3 blocks bytes=9 why="no room"\n'


def test_machines_read_one_json_object_a_line(stream: io.StringIO) -> None:
    setup_logging("kvstore", "kv-1", as_json=True, stream=stream)
    log = logging.getLogger("x")
    log.info("two\nlines", extra={"bytes": 9, "level": "mine"})
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        log.exception("failed")
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert first["message"] == "two\nlines"
    assert (first["service"], first["member"], first["bytes"]) == ("kvstore", "kv-1", 9)
    assert (first["level"], first["field_level"]) == ("info", "mine")
    assert "RuntimeError: boom" in second["exception"]


def test_a_level_hides_what_is_below_it(stream: io.StringIO) -> None:
    setup_logging("kvstore", level="warning", stream=stream)
    logging.getLogger("x").info("quiet")
    logging.getLogger("x").warning("loud")
    assert "quiet" not in stream.getvalue() and "loud" in stream.getvalue()


def test_setting_up_twice_does_not_say_everything_twice(stream: io.StringIO) -> None:
    setup_logging("a", stream=stream)
    setup_logging("b", stream=stream)
    logging.getLogger("x").info("once")
    assert stream.getvalue().count("once") == 1


def test_a_metric_is_made_once_and_found_by_name() -> None:
    metrics = Metrics()
    metrics.counter("blocks", "Blocks.", ["why"]).labels("full").inc(2)
    assert metrics.counter("blocks", "Blocks.", ["why"]) is metrics.counter("blocks", "", ["why"])
    assert 'blocks_total{why="full"} 2.0' in metrics.text()


def test_a_metric_asked_for_as_something_else_is_a_bug() -> None:
    metrics = Metrics()
    metrics.counter("blocks", "Blocks.")
    with pytest.raises(ValueError, match="another kind"):
        metrics.gauge("blocks", "Blocks.")
    with pytest.raises(ValueError, match="other labels"):
        metrics.counter("blocks", "Blocks.", ["why"])


def test_a_histogram_keeps_its_buckets() -> None:
    metrics = Metrics()
    metrics.histogram("ttft_seconds", "Time.", buckets=TTFT_BUCKETS).observe(0.3)
    assert 'ttft_seconds_bucket{le="0.25"} 0.0' in metrics.text()
    assert 'ttft_seconds_bucket{le="0.5"} 1.0' in metrics.text()


def test_metrics_are_served_over_http_and_a_taken_port_is_one_sentence() -> None:
    metrics = Metrics()
    metrics.gauge("answer", "The answer.").set(42)
    port = serve_metrics(0, metrics=metrics)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
        assert "answer 42.0" in response.read().decode()
    with pytest.raises(StartupError, match=f"The metrics port {port} on 127.0.0.1 cannot be used"):
        serve_metrics(port, metrics=metrics)


def test_metrics_are_served_under_tls_and_a_scraper_without_it_is_no_news(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("metrics")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    metrics = Metrics()
    metrics.gauge("answer", "The answer.").set(42)
    port = serve_metrics(0, metrics=metrics, tls=context)
    with pytest.raises(OSError, match=r"."):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5)
    trusting = ssl.create_default_context(cafile=authority.cert)
    url = f"https://127.0.0.1:{port}/metrics"
    with urllib.request.urlopen(url, timeout=5, context=trusting) as response:
        assert "answer 42.0" in response.read().decode()
    assert capsys.readouterr().err == ""


def test_the_process_metrics_tell_about_the_process() -> None:
    assert "process_cpu_seconds_total" in metrics_text()

"""What `impala batch results` says of a batch that failed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from services.cli.main import main

BROKEN = "A part of the run's recorded results is lost."
BATCH: dict[str, Any] = {
    "id": "batch_1",
    "status": "failed",
    "run_id": "run-1",
    "request_counts": {"total": 3, "completed": 1, "failed": 2},
    "unanswered": 2,
    "usage": {},
    "output_file_id": "file-out",
    "error_file_id": "file-err",
    "errors": {"data": [{"code": "run_failed", "message": BROKEN, "line": None}]},
}
FILES = {"file-out": b'{"custom_id":"a"}\n', "file-err": b'{"custom_id":"b"}\n'}


class Router(BaseHTTPRequestHandler):
    batch: dict[str, Any] = BATCH

    def do_GET(self) -> None:
        parts = self.path.split("/")
        found = FILES[parts[3]] if parts[2] == "files" else json.dumps(self.batch).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(found)))
        self.end_headers()
        self.wfile.write(found)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def router() -> Iterator[type[Router]]:
    class Own(Router):
        pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Own)
    Own.url = f"http://127.0.0.1:{server.server_port}"  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield Own
    server.shutdown()
    thread.join()
    server.server_close()


def results(router: type[Router], *flags: str) -> int:
    url: str = router.url  # type: ignore[attr-defined]
    return main(["batch", "results", "batch_1", "--url", url, *flags])


@pytest.mark.parametrize(("flags", "file"), [([], "file-out"), (["--errors"], "file-err")])
def test_of_a_broken_run_what_was_kept_is_printed_and_why_it_is_not_all(
    router: type[Router], capfdbinary: pytest.CaptureFixture[bytes], flags: list[str], file: str
) -> None:
    assert results(router, *flags) == 1
    out, err = capfdbinary.readouterr()
    assert out == FILES[file]
    assert b"The run of the batch batch_1 failed: 1 of 3 completed, 2 unanswered." in err
    assert f"{BROKEN} (run_failed)".encode() in err
    assert b"validation" not in err


def test_of_a_broken_run_what_was_kept_is_saved(router: type[Router], tmp_path: Path) -> None:
    assert results(router, "-o", str(tmp_path / "out.jsonl")) == 1
    assert (tmp_path / "out.jsonl").read_bytes() == FILES["file-out"]


def test_what_failed_in_validation_has_no_results(
    router: type[Router], tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    router.batch = BATCH | {"run_id": None, "output_file_id": None, "error_file_id": None}
    assert results(router, "-o", str(tmp_path / "out.jsonl")) == 1
    assert b"failed in validation; none of its lines was answered" in capfdbinary.readouterr().err
    assert not (tmp_path / "out.jsonl").exists()

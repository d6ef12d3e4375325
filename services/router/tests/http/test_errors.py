"""Every failure is OpenAI's envelope with all four members, and names what is wrong."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from libs.errors import FailedPrecondition, InvalidArgument, ResourceExhausted, Unavailable
from libs.objects import InvalidKey
from services.router.failures import failure_of
from services.router.testing import Gate
from services.router.tests.conftest import MODEL, Stage

ASK: Any = [{"role": "user", "content": "Hi"}]


def envelope(answer: Any) -> dict[str, Any]:
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    assert answer.headers["x-request-id"].startswith("req_")
    return dict(body["error"])


MISSING = [
    ("GET", "/v1/nothing", 404, "unknown_url"),
    ("GET", "/", 404, "unknown_url"),
    ("PUT", "/v1/files", 405, "method_not_allowed"),
    ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
    ("GET", "/v1/files/file-nope", 404, "file_not_found"),
    ("GET", "/v1/files/..%2F..%2Fother", 404, "unknown_url"),
    ("DELETE", "/v1/files/file-nope", 404, "file_not_found"),
    ("GET", "/v1/batches/batch_nope", 404, "batch_not_found"),
    ("POST", "/v1/batches/batch_nope/cancel", 404, "batch_not_found"),
    ("GET", "/imp/v1/jobs/job-nope", 404, "job_not_found"),
    ("GET", "/imp/v1/runs/run-nope", 404, "run_not_found"),
    ("GET", "/v1/models/no/such", 404, "model_not_found"),
    ("POST", "/v1/embeddings", 501, "not_implemented"),
    ("POST", "/v1/responses", 501, "not_implemented"),
    ("POST", "/v1/messages", 501, "not_implemented"),
]


async def test_what_does_not_exist(stage: Stage) -> None:
    http = stage.http()
    for method, path, status, code in MISSING:
        answer = await http.request(method, path)
        assert (answer.status_code, envelope(answer)["code"]) == (status, code), path


async def test_a_body_that_is_no_json_object(stage: Stage) -> None:
    http = stage.http()
    for body in (b"{", b"[1]", b'{"a": NaN}', b"\xff", b"[" * 5000):
        answer = await http.post("/v1/chat/completions", content=body)
        assert answer.status_code == 400, body[:20]
        assert envelope(answer)["code"] in ("invalid_json", "invalid_type")


async def test_a_body_that_is_too_large_is_refused_by_its_length(stage: Stage) -> None:
    url = urlsplit(stage.router.http_url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    writer.write(b"POST /v1/batches HTTP/1.1\r\nhost: x\r\ncontent-length: 1073741824\r\n\r\n{")
    answer = await reader.readuntil(b"}}")
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"request_too_large"' in answer
    writer.close()


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"model": None}, "model", "missing_required_parameter"),
    ({"messages": []}, "messages", "invalid_value"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "invalid_message"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[0].content[0].type",
        "invalid_message",
    ),
    ({"temperature": 3}, "temperature", "invalid_value"),
    ({"stop": [""]}, "stop[0]", "invalid_value"),
    ({"max_tokens": 4096}, "max_tokens", "context_length_exceeded"),
    ({"n": 0}, "n", "invalid_value"),
    ({"logit_bias": {"99999": 1}}, "logit_bias.99999", "invalid_value"),
    ({"temprature": 1}, "temprature", "unknown_parameter"),
]


async def test_a_field_that_is_wrong_is_named(stage: Stage) -> None:
    http = stage.http()
    for changes, param, code in WRONG:
        for stream in (False, True):
            body = {"model": MODEL, "messages": ASK, "stream": stream} | changes
            answer = await http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 400
            error = envelope(answer)
            assert (error["param"], error["code"]) == (param, code)
    assert stage.server.requests == []


def test_an_object_key_that_is_no_good_is_the_servers_fault_and_told_to_nobody() -> None:
    failure = failure_of(InvalidKey("files/me/file-1", "another object's key is a folder of it"))
    assert (failure.status, failure.code) == (500, "internal_error")
    assert failure.message == "The server failed on this request."


async def test_an_unknown_model_is_404_to_the_official_client(stage: Stage) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await stage.openai().chat.completions.create(model="no-such", messages=ASK)
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"
    assert caught.value.request_id


async def test_a_model_of_a_job_without_a_server_is_503_and_may_be_retried(stage: Stage) -> None:
    await stage.add_job("away")
    await stage.router_sees_jobs(1)
    body = {"model": "away", "messages": ASK}
    answer = await stage.http().post("/v1/chat/completions", json=body)
    assert answer.status_code == 503
    assert envelope(answer)["code"] == "no_servers"
    assert int(answer.headers["retry-after-ms"]) == 1000


async def test_a_full_queue_is_429_with_the_schedulers_retry_after(stage: Stage) -> None:
    stage.scheduler.failures = [ResourceExhausted("Full.", "QUEUE_FULL", None, 2.5)]
    answer = await stage.http().post("/v1/chat/completions", json={"model": MODEL, "messages": ASK})
    assert answer.status_code == 429
    assert envelope(answer)["code"] == "queue_full"
    assert answer.headers["retry-after-ms"] == "2500"


async def test_what_the_engine_refuses_reaches_the_client_with_its_field(stage: Stage) -> None:
    stage.server.failures = [InvalidArgument("No such bias.", "BAD_BIAS", "sampling.logit_bias")]
    answer = await stage.http().post(
        "/v1/chat/completions", json={"model": MODEL, "messages": ASK, "stream": True}
    )
    assert answer.status_code == 400
    assert envelope(answer)["param"] == "logit_bias"
    assert len(stage.server.requests) == 1


async def test_a_stream_that_breaks_ends_with_an_error_event_and_no_done(stage: Stage) -> None:
    stage.server.fail_after = (3, Unavailable("The engine is gone.", "ENGINE_LOST"))
    body = {"model": MODEL, "messages": ASK, "stream": True}
    answer = await stage.http().post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    lines = [line for line in answer.text.splitlines() if line]
    assert lines[-2] == "event: error"
    assert '"code":"server_lost"' in lines[-1]
    assert "[DONE]" not in answer.text


async def test_the_official_client_raises_on_a_stream_that_breaks(stage: Stage) -> None:
    stage.server.fail_after = (3, Unavailable("The engine is gone.", "ENGINE_LOST"))
    stream = await stage.openai().chat.completions.create(
        model=MODEL,
        messages=ASK,
        stream=True,
    )
    with pytest.raises(openai.APIError) as caught:
        async for _ in stream:
            pass
    assert caught.value.code == "server_lost"


async def test_a_request_beyond_its_time_is_504(bare: Stage) -> None:
    server = await bare.add_server()
    await bare.add_scheduler()
    await bare.add_router(request_timeout_s=1.0)
    server.gate = Gate()
    answer = await bare.http().post("/v1/chat/completions", json={"model": MODEL, "messages": ASK})
    assert answer.status_code == 504
    await server.wait_until(lambda server: not server.running)


async def test_a_409_is_not_retried_by_the_official_client(stage: Stage) -> None:
    stage.server.failures = [FailedPrecondition("Not now.", "NOT_NOW")]
    with pytest.raises(openai.ConflictError):
        await stage.openai(max_retries=2).chat.completions.create(
            model=MODEL,
            messages=ASK,
        )
    assert len(stage.server.requests) == 1

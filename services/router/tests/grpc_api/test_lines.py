"""Lines of a batch are counted and refused as single requests are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from impala.router.v1 import router_pb2
from services.router.tests.conftest import Stage
from services.router.tests.grpc_api.test_worker import (
    Leader,
    entries,
    index,
    request_line,
    worker_of,
)


async def results_of(stage: Stage, content: bytes) -> dict[int, router_pb2.LineResult]:
    async with worker_of(stage) as worker:
        await index(stage, worker, content)
        leader = Leader(worker)
        leader.hand_out(await entries(stage))
        leader.half_close()
        return await leader.results()


def answer_of(result: router_pb2.LineResult) -> dict[str, Any]:
    return dict(json.loads(result.record)["response"]["body"])


@pytest.mark.parametrize("tokens_a_message", [1, 4, 100])
@pytest.mark.parametrize("hears_aborts", [False, True])
async def test_tokens_after_a_stop_string_are_not_counted(
    stage: Stage, tokens_a_message: int, hears_aborts: bool
) -> None:
    stage.server.tokens_a_message = tokens_a_message
    stage.server.hears_aborts = hears_aborts
    stage.server.reply = stage.saying("some text END of it and more")
    content = request_line("a", stop="END", logprobs=True) + request_line("b", stop="END")
    results = await results_of(stage, content)
    for result in results.values():
        body = answer_of(result)
        assert body["choices"][0]["message"]["content"] == "some text "
        assert body["usage"]["completion_tokens"] == len("some text END")
        assert result.usage.completion_tokens == len("some text END")
    listed = answer_of(results[1])["choices"][0]["logprobs"]["content"]
    assert "".join(entry["token"] for entry in listed) == "some text END"


async def test_a_wrong_field_is_the_lines_own_error_by_its_name(stage: Stage) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"temprature": 1}, "temprature"),
        ({"store": "yes"}, "store"),
        ({"logit_bias": {"99999": 1}}, "logit_bias.99999"),
    ]
    lines = [request_line(param, **fields) for fields, param in wrong]
    results = await results_of(stage, b"".join([*lines, request_line("good", store=True)]))
    for number, (_, param) in enumerate(wrong, 1):
        assert results[number].outcome == router_pb2.LINE_OUTCOME_ERROR
        assert answer_of(results[number])["error"]["param"] == param
    assert results[len(wrong) + 1].outcome == router_pb2.LINE_OUTCOME_OUTPUT

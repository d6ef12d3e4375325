"""A cancel at any moment, repeated and cut short: it happens once, and loses nothing."""

from __future__ import annotations

import asyncio
import json
import random

import openai
import pytest

from tests.robustness.cluster import MODEL, Cluster
from tests.runs.api import Api, api_of, chat_line, ids

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("runs"),
    pytest.mark.asyncio(loop_scope="package"),
]

QUICK, SLOW = 5, 20


def content() -> str:
    lines = [chat_line(MODEL, f"quick-{at}", f"Number {at}", 1) for at in range(QUICK)]
    lines += [chat_line(MODEL, f"slow-{at}", f"Number {at}", 150) for at in range(SLOW)]
    return "".join(lines)


async def assert_cancelled_with_what_was_recorded(
    api: Api, batch_id: str, recorded: list[bytes]
) -> None:
    batch = await api.ended(batch_id)
    assert batch["status"] == "cancelled"
    output, errors = [await api.lines(batch[f"{kind}_file_id"]) for kind in ("output", "error")]
    counts = batch["request_counts"]
    assert (len(output), len(errors)) == (counts["completed"], counts["failed"])
    assert ids([*output, *errors]) == ids([line.encode() for line in content().splitlines()])
    assert set(recorded) <= set(output)
    assert {json.loads(line)["error"]["code"] for line in errors} <= {"batch_cancelled"}


@pytest.mark.parametrize("number", range(6))
async def test_a_cancel_keeps_what_is_recorded_and_names_the_rest(
    cluster: Cluster, api: Api, number: int
) -> None:
    rng = random.Random(number)
    batch_id = await api.submit(content())
    await api.recorded(batch_id, rng.randint(0, QUICK))
    await asyncio.sleep(rng.uniform(0, 1))  # the moment is what is drawn
    recorded = await api.results(batch_id)
    shown = await api.ask("POST", f"/v1/batches/{batch_id}/cancel")
    assert shown["status"] in ("cancelling", "cancelled") and shown["cancelling_at"]
    await assert_cancelled_with_what_was_recorded(api, batch_id, recorded)


async def test_a_cancel_that_is_cut_short_may_be_sent_again(cluster: Cluster, api: Api) -> None:
    """The router and both leaders are killed as it is sent; then it is sent to both routers."""
    batch_id = await api.submit(content())
    await api.recorded(batch_id, 1)
    recorded = await api.results(batch_id)
    cancelling = asyncio.create_task(api.http.post(f"/v1/batches/{batch_id}/cancel"))
    await asyncio.sleep(0)
    cluster.kill(["router-1", "scheduler-1", "scheduler-2"])
    await asyncio.gather(cancelling, return_exceptions=True)
    async with api_of(cluster.http["router-2"]) as other:
        first = await api.ask("POST", f"/v1/batches/{batch_id}/cancel")
        second = await other.ask("POST", f"/v1/batches/{batch_id}/cancel")
        assert first["status"] == second["status"] == "cancelling"
        assert first["cancelling_at"] == second["cancelling_at"]
        await assert_cancelled_with_what_was_recorded(other, batch_id, recorded)


async def test_a_cancel_of_a_batch_that_has_ended_is_one_request_with_a_clear_answer(
    cluster: Cluster, api: Api
) -> None:
    batch_id = await api.submit(chat_line(MODEL, "a", "Hi", 1))
    await api.ended(batch_id)
    url = f"{cluster.http['router-1']}/v1"
    requests: list[str] = []

    async def count(request: object) -> None:
        requests.append(str(request))

    http = openai.DefaultAsyncHttpxClient(event_hooks={"request": [count]})
    async with openai.AsyncOpenAI(
        base_url=url, api_key="none", max_retries=5, http_client=http
    ) as client:
        with pytest.raises(openai.ConflictError, match="status 'completed'") as caught:
            await client.batches.cancel(batch_id)
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert len(requests) == 1


async def test_a_file_in_use_is_kept_and_results_outlive_it(cluster: Cluster, api: Api) -> None:
    """Two batches of one file: it can be deleted once both have ended, and not before. The second
    is made when the first has recorded some lines: it is not the first to end."""
    first = await api.submit(content())
    await api.recorded(first, QUICK + 1)
    file_id = (await api.look(first))["input_file_id"]
    body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions"}
    key = {"Idempotency-Key": f"second of {file_id}"}
    made = [
        await api.ask("POST", "/v1/batches", json=body | {"completion_window": "24h"}, headers=key)
        for _ in range(3)
    ]
    (second,) = {each["id"] for each in made}
    for batch_id in (first, second):
        refused = await api.http.delete(f"/v1/files/{file_id}")
        assert (refused.status_code, refused.headers["x-should-retry"]) == (409, "false")
        await api.ended(batch_id)
    assert (await api.http.delete(f"/v1/files/{file_id}")).json()["deleted"]
    for batch_id in (first, second):
        batch = await api.look(batch_id)
        assert batch["request_counts"]["completed"] == QUICK + SLOW
        assert ids(await api.lines(batch["output_file_id"])) == ids(await api.results(batch_id))

"""Batches of the whole stack: isolation, cancel, cost."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest

from tests.e2e import batches
from tests.e2e.batches import chat_line
from tests.e2e.stack import MODEL, Stack


def answer(line: dict[str, Any]) -> str:
    return str(line["response"]["body"]["choices"][0]["message"]["content"])


async def ledger_of(stack: Stack, batch_id: str) -> dict[str, Any]:
    async with httpx.AsyncClient(trust_env=False, base_url=stack.url) as http:
        shown = (await http.get(f"/v1/batches/{batch_id}")).json()
        run = (await http.get(f"/imp/v1/runs/{shown['run_id']}")).json()
    ledger: dict[str, Any] = run["ledger"]
    return ledger


async def test_batches_with_the_same_custom_ids_get_their_own_answers(
    client: openai.AsyncOpenAI,
) -> None:
    words = ("red", "seven")
    made = await asyncio.gather(
        *(
            batches.submit(
                client,
                [chat_line(f"r{i}", f"Repeat: {word} {i}", max_tokens=6) for i in range(4)],
            )
            for word in words
        )
    )
    done = await asyncio.gather(*(batches.ended(client, batch) for batch in made))
    alone = {
        (word, i): await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": f"Repeat: {word} {i}"}],
            max_tokens=6,
            temperature=0,
        )
        for word in words
        for i in (0, 3)
    }
    for word, batch in zip(words, done, strict=True):
        lines = await batches.content(client, batch.output_file_id)
        assert batches.ids(lines) == ["r0", "r1", "r2", "r3"]
        by_id = {line["custom_id"]: answer(line) for line in lines}
        for i in (0, 3):
            assert by_id[f"r{i}"] == alone[word, i].choices[0].message.content


async def test_a_cancel_keeps_what_is_finished_and_names_and_charges_the_rest(
    client: openai.AsyncOpenAI, stack: Stack
) -> None:
    short = [chat_line(f"short-{i}", f"Hi {i}") for i in range(3)]
    long = [
        chat_line(f"long-{i}", f"Count from {i}", max_tokens=4000, ignore_eos=True)
        for i in range(20)
    ]
    # Once this one has ended, the long ones before it have been computed for a while.
    between = chat_line("between", "Hello", max_tokens=40, ignore_eos=True)
    batch = await batches.submit(client, [*short, *long[:2], between, *long[2:]])
    async with asyncio.timeout(60):
        while not (batch.request_counts and batch.request_counts.completed == 4):
            await asyncio.sleep(0.1)
            batch = await client.batches.retrieve(batch.id)
    assert (await client.batches.cancel(batch.id)).status in ("cancelling", "cancelled")
    done = await batches.ended(client, batch)
    assert done.status == "cancelled"
    assert done.request_counts is not None
    output = await batches.content(client, done.output_file_id)
    errors = await batches.content(client, done.error_file_id)
    counts = done.request_counts
    assert (len(output), len(errors)) == (counts.completed, counts.failed) == (4, 20)
    assert batches.ids(output) == ["between", *(f"short-{i}" for i in range(3))]
    assert batches.ids(errors) == sorted(f"long-{i}" for i in range(20))
    assert {line["error"]["code"] for line in errors} == {"batch_cancelled"}
    with pytest.raises(openai.ConflictError):
        await client.batches.cancel(done.id)
    ledger = await ledger_of(stack, done.id)
    # The long lines never said a word before they were cancelled.
    assert ledger["wasted_tokens"] > 0
    assert ledger["busy_engine_s"] > 0


async def test_a_batch_says_what_it_cost(client: openai.AsyncOpenAI, stack: Stack) -> None:
    batch = await batches.submit(client, [chat_line(f"c{i}", "Hello") for i in range(3)])
    done = await batches.ended(client, batch)
    async with httpx.AsyncClient(trust_env=False, base_url=stack.url) as http:
        shown = (await http.get(f"/v1/batches/{done.id}")).json()
        run = (await http.get(f"/imp/v1/runs/{shown['run_id']}")).json()
    ledger = run["ledger"]
    assert ledger["tasks"] == 3
    assert ledger["completion_tokens"] == shown["usage"]["output_tokens"] == 3
    assert ledger["busy_engine_s"] > 0
    wall = ledger["busy_engine_s"] + ledger["idle_engine_s"]
    # One server cannot be reserved for longer than the run took; times are whole seconds.
    assert wall <= run["ended_at"] - run["started_at"] + 2
    cost = wall / 3600 * ledger["price_per_engine_hour"]
    assert shown["processing_cost"] == pytest.approx(cost)
    assert shown["tasks_per_dollar"] == pytest.approx(3 / cost)
    tokens = ledger["prompt_tokens"] + ledger["completion_tokens"]
    assert shown["price_1m_tokens"] == pytest.approx(cost / tokens * 1e6)
    assert ledger["task_completion_s"]["count"] == 3

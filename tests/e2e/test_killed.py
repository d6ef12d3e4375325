"""Processes killed (SIGKILL) while a batch runs: it completes, with every line once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import openai
import pytest

from tests.e2e import batches
from tests.e2e.batches import chat_line
from tests.e2e.stack import Stack

SERVICES = ("router", "scheduler", "modelserver", "kvstore", "leap")


def logs(stack: Stack) -> dict[str, str]:
    return {name: (stack.state.logs / f"{name}.log").read_text() for name in SERVICES}


def assert_no_traceback(stack: Stack, before: dict[str, str]) -> None:
    """A kill of one process is news for the others, never a failure of theirs."""
    for name, log in logs(stack).items():
        said = log.removeprefix(before[name])
        for trouble in ("Traceback", "Task was destroyed", "never retrieved"):
            assert trouble not in said, f"{name} said:\n{said}"


async def complete_while_killing(
    client: openai.AsyncOpenAI, stack: Stack, names: Sequence[str], lines: int, tokens: int
) -> None:
    requests = [
        chat_line(f"k{i}", f"Tell me about the number {i}", max_tokens=tokens, ignore_eos=True)
        for i in range(lines)
    ]
    before = logs(stack)
    batch = await batches.submit(client, requests)
    restarts = {name: stack.service(name).restarts for name in names}
    for name in names:
        await asyncio.to_thread(stack.kill, name)
    done = await batches.ended(client, batch, within_s=200)
    assert done.status == "completed"
    counts = done.request_counts
    assert counts is not None
    assert (counts.total, counts.completed, counts.failed) == (lines, lines, 0)
    output = await batches.content(client, done.output_file_id)
    assert batches.ids(output) == sorted(f"k{i}" for i in range(lines))
    used = [line["response"]["body"]["usage"] for line in output]
    assert {usage["completion_tokens"] for usage in used} == {tokens}
    assert done.usage is not None
    assert done.usage.output_tokens == lines * tokens
    assert done.usage.input_tokens == sum(usage["prompt_tokens"] for usage in used)
    assert done.usage.input_tokens_details.cached_tokens == sum(
        usage["prompt_tokens_details"]["cached_tokens"] for usage in used
    )
    assert_no_traceback(stack, before)
    assert {name: stack.service(name).restarts for name in names} == {
        name: count + 1 for name, count in restarts.items()
    }


async def test_a_killed_router_and_scheduler_lose_no_line(
    client: openai.AsyncOpenAI, stack: Stack
) -> None:
    await complete_while_killing(client, stack, ["router", "scheduler"], lines=12, tokens=8)


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_every_process_killed_in_turn_loses_no_line(
    client: openai.AsyncOpenAI, stack: Stack
) -> None:
    names = ["kvstore", "leap", "scheduler", "router", "modelserver", "etcd"]
    await complete_while_killing(client, stack, names, lines=80, tokens=40)

"""/v1/chat/completions as the official client sees it."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from services.router.tests.conftest import MODEL, Stage

ASK: Any = [{"role": "user", "content": "Hi"}]


async def test_a_plain_answer_has_text_usage_and_the_weights_that_sampled_it(stage: Stage) -> None:
    stage.server.cached_tokens = 3
    raw = await stage.openai().chat.completions.with_raw_response.create(
        model=MODEL, messages=ASK, temperature=0
    )
    answer = raw.parse()
    assert isinstance(answer, ChatCompletion)
    assert answer.choices[0].message.content == "Hello there, agent."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(stage.server.requests[0].prompt)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 3
    assert raw.headers["x-impala-weight-version"] == "7-000000000000"
    assert raw.headers["x-request-id"].startswith("req_")
    assert answer.system_fingerprint == "fp_7-000000000000"


async def test_a_stream_says_the_same_as_a_plain_answer(stage: Stage) -> None:
    client = stage.openai()
    plain = await client.chat.completions.create(model=MODEL, messages=ASK)
    chunks = [
        chunk
        async for chunk in await client.chat.completions.create(
            model=MODEL, messages=ASK, stream=True
        )
    ]
    assert all(isinstance(chunk, ChatCompletionChunk) for chunk in chunks)
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert text == plain.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["stop"]
    assert all(chunk.usage is None for chunk in chunks)


async def test_the_usage_chunk_comes_once_and_last_before_done(stage: Stage) -> None:
    async with stage.http().stream(
        "POST",
        "/v1/chat/completions",
        json={
            "model": MODEL,
            "messages": ASK,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    ) as response:
        events = [line async for line in response.aiter_lines() if line]
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-impala-weight-version"] == "7-000000000000"
    assert events[-1] == "data: [DONE]"
    assert sum('"prompt_tokens"' in event for event in events) == 1
    assert '"choices":[]' in events[-2]


@pytest.mark.parametrize("stream", [False, True])
async def test_several_choices_each_have_their_own_text(stage: Stage, stream: bool) -> None:
    texts = ["first one", "second, longer one", "3"]
    stage.server.reply = lambda request, choice: stage.saying(texts[choice])(request, choice)
    client = stage.openai()
    if stream:
        found = ["", "", ""]
        async for chunk in await client.chat.completions.create(
            model=MODEL, messages=ASK, n=3, stream=True
        ):
            for choice in chunk.choices:
                found[choice.index] += choice.delta.content or ""
    else:
        answer = await client.chat.completions.create(model=MODEL, messages=ASK, n=3)
        found = [choice.message.content or "" for choice in answer.choices]
    assert found == texts


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_the_answer_before_it_and_is_never_seen(
    stage: Stage, stream: bool
) -> None:
    stage.server.reply = stage.saying("some text EN ENx END of it and more", ends=False)
    client = stage.openai()
    for stop in ("END", ["xyz", "END"], "E", "END of"):
        asked: dict[str, Any] = {"model": MODEL, "messages": ASK, "stop": stop}
        if stream:
            chunks = [
                chunk async for chunk in await client.chat.completions.create(**asked, stream=True)
            ]
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            reason = chunks[-1].choices[0].finish_reason
        else:
            answer = await client.chat.completions.create(**asked)
            text = answer.choices[0].message.content or ""
            reason = answer.choices[0].finish_reason
        assert text == ("some text " if stop == "E" else "some text EN ENx ")
        assert reason == "stop"
        abort = stage.server.aborts[-1]
        assert abort.step_id == stage.server.requests[-1].step_id
        assert abort.choice == 0


@pytest.mark.parametrize("hears_aborts", [False, True])
@pytest.mark.parametrize("tokens_a_message", [1, 4, 100])
async def test_tokens_sampled_after_a_stop_string_are_not_counted(
    stage: Stage, tokens_a_message: int, hears_aborts: bool
) -> None:
    """In later messages or in the stop's own; another choice that has no stop counts whole."""
    said, other = "some text END of it and more", "no such thing here"
    stage.server.tokens_a_message = tokens_a_message
    stage.server.hears_aborts = hears_aborts
    stage.server.reply = lambda request, choice: stage.saying(other if choice else said)(
        request, choice
    )
    client = stage.openai()
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": ASK,
        "stop": "END",
        "n": 2,
        "logprobs": True,
    }
    counts = [len("some text END"), len(other)]
    plain = await client.chat.completions.create(**asked)
    assert plain.usage is not None
    # The end token of the choice that ends itself is counted.
    assert plain.usage.completion_tokens == sum(counts) + 1
    listed = [len(c.logprobs.content or []) if c.logprobs else 0 for c in plain.choices]
    assert listed == counts
    streamed = [0, 0]
    async for chunk in await client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    ):
        for choice in chunk.choices:
            if choice.logprobs is not None:
                streamed[choice.index] += len(choice.logprobs.content or [])
        if chunk.usage is not None:
            assert chunk.usage == plain.usage
    assert streamed == counts


async def test_what_looks_like_a_stop_string_but_is_none_comes_out_at_the_end(
    stage: Stage,
) -> None:
    stage.server.reply = stage.saying("it is not the EN")
    answer = await stage.openai().chat.completions.create(model=MODEL, messages=ASK, stop="END")
    assert answer.choices[0].message.content == "it is not the EN"


@pytest.mark.parametrize("stream", [False, True])
async def test_characters_of_several_bytes_come_whole(stage: Stage, stream: bool) -> None:
    text = "naïve 你好 👩‍🚀 end"
    stage.server.reply = stage.saying(text)
    client = stage.openai()
    if stream:
        pieces = [
            chunk.choices[0].delta.content or ""
            async for chunk in await client.chat.completions.create(
                model=MODEL, messages=ASK, stream=True
            )
        ]
        assert not any("\ufffd" in piece for piece in pieces)
        assert "".join(pieces) == text
    else:
        answer = await client.chat.completions.create(model=MODEL, messages=ASK)
        assert answer.choices[0].message.content == text


@pytest.mark.parametrize("stop", [None, "lo w"])
async def test_logprobs_go_with_the_text_that_is_told_streamed_and_plain(
    stage: Stage, stop: str | None
) -> None:
    stage.server.reply = stage.saying("hello world")
    client = stage.openai()
    asked = {"model": MODEL, "messages": ASK, "logprobs": True, "top_logprobs": 2, "stop": stop}
    plain = await client.chat.completions.create(**asked)
    logprobs = plain.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    text = plain.choices[0].message.content or ""
    # The stop string's own tokens were sampled and count, so they are told too.
    assert "".join(entry.token for entry in logprobs.content) == text + (stop or "")
    assert all(len(entry.top_logprobs) == 2 for entry in logprobs.content)
    streamed = [
        entry.token
        async for chunk in await client.chat.completions.create(**asked, stream=True)
        for entry in (
            (chunk.choices[0].logprobs.content or []) if chunk.choices[0].logprobs else []
        )
    ]
    assert streamed == [entry.token for entry in logprobs.content]


async def test_logprobs_of_an_answer_that_is_an_end_token_alone_are_empty_streamed_and_plain(
    stage: Stage,
) -> None:
    stage.server.reply = stage.saying("")
    client = stage.openai()
    asked: Any = {"model": MODEL, "messages": ASK, "logprobs": True}
    plain = (await client.chat.completions.create(**asked)).choices[0].logprobs
    stream = await client.chat.completions.create(**asked, stream=True)
    told = [chunk.choices[0].logprobs async for chunk in stream]
    assert plain is not None and plain.content == []
    assert [each.content for each in told if each is not None] == [[]]
    by_text: Any = {"model": MODEL, "prompt": "Hi", "logprobs": 1}
    whole = (await client.completions.create(**by_text)).choices[0].logprobs
    pieces = await client.completions.create(**by_text, stream=True)
    assert whole is not None and whole.tokens == []
    told_of = [each.choices[0].logprobs async for each in pieces]
    assert [each.tokens for each in told_of if each is not None] == [[]]


async def test_min_tokens_holds_off_a_stop_string(stage: Stage) -> None:
    client = stage.openai()
    asked: Any = {"model": MODEL, "messages": ASK, "stop": ["l"]}
    first = await client.chat.completions.create(**asked)
    later = await client.chat.completions.create(**asked, extra_body={"min_tokens": 4})
    none = await client.chat.completions.create(**asked, extra_body={"min_tokens": 19})
    texts = [each.choices[0].message.content for each in (first, later, none)]
    assert texts == ["He", "Hello there, agent.", "Hello there, agent."]


async def test_max_tokens_ends_with_length(stage: Stage) -> None:
    answer = await stage.openai().chat.completions.create(
        model=MODEL, messages=ASK, max_completion_tokens=5
    )
    assert answer.choices[0].message.content == "Hello"
    assert answer.choices[0].finish_reason == "length"


async def test_what_the_scheduler_and_the_server_are_told(stage: Stage) -> None:
    await stage.add_job()
    await stage.router_sees_jobs(1)
    system = "You are an agent. " * 4
    await stage.openai().chat.completions.create(
        model=MODEL,
        messages=[{"role": "system", "content": system}, *ASK],
        max_tokens=9,
        seed=5,
        top_p=0.5,
        service_tier="flex",
        extra_headers={
            "x-impala-trace-id": "t-1",
            "x-impala-parent-trace-id": "t-0",
            "x-impala-tool": "grep",
        },
    )
    acquired, request = stage.scheduler.acquired[0], stage.server.requests[0]
    assert (acquired.trace_id, acquired.parent_trace_id, acquired.tool) == ("t-1", "t-0", "grep")
    assert acquired.window == 3
    assert acquired.prompt_tokens == len(request.prompt)
    assert len(acquired.content_hashes) == len(request.prompt) // 32 * 16
    assert [span.role for span in acquired.spans] == ["system", "user", "assistant"]
    assert acquired.job_id == "job-0000aaaa"
    assert request.grant.grant_id == "grant-1"
    assert request.grant.epoch == 5
    assert request.trace_id == "t-1"
    assert request.stopping.max_tokens == 9
    assert request.sampling.seed == 5
    assert request.sampling.top_p == 0.5
    assert request.owner.job_id == "job-0000aaaa"
    assert len(request.account_salt) == 16
    assert stage.tokenizer.decode(request.prompt, skip_special_tokens=False) == (
        f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )

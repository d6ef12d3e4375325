"""/v1/completions, models, health, metrics."""

from __future__ import annotations

import asyncio

import openai
import pytest

from services.router.tests.conftest import MODEL, Stage

# The official client's type of a text completion has no null finish_reason, which every chunk but
# the last has, OpenAI's own too: streams of them are read without strict validation.
LOOSE = {"_strict_response_validation": False}


async def test_a_text_completion_plain_and_streamed(stage: Stage) -> None:
    client = stage.openai()
    plain = await client.completions.create(model=MODEL, prompt="Say", logprobs=1)
    assert plain.choices[0].text == "Hello there, agent."
    logprobs = plain.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert "".join(logprobs.tokens) == plain.choices[0].text
    offsets: list[int] = []
    text = ""
    async for chunk in await stage.openai(**LOOSE).completions.create(
        model=MODEL, prompt="Say", logprobs=1, stream=True
    ):
        text += chunk.choices[0].text
        streamed = chunk.choices[0].logprobs
        if streamed is not None and chunk.choices[0].finish_reason is None:
            offsets += streamed.text_offset or []
    assert text == plain.choices[0].text
    assert offsets == logprobs.text_offset
    assert stage.tokenizer.decode(stage.server.requests[0].prompt) == "Say"


@pytest.mark.parametrize("stream", [False, True])
async def test_several_prompts_are_numbered_one_after_the_other(stage: Stage, stream: bool) -> None:
    stage.server.reply = lambda request, choice: [*request.prompt, stage.server.end_token]
    prompts = ["first prompt", "second", "third one"]
    client = stage.openai()
    if stream:
        found = [""] * 6
        usages = []
        async for chunk in await stage.openai(**LOOSE).completions.create(
            model=MODEL,
            prompt=prompts,
            n=2,
            stream=True,
            stream_options={"include_usage": True},
        ):
            for choice in chunk.choices:
                found[choice.index] += choice.text
            if chunk.usage:
                usages.append(chunk.usage)
        assert len(usages) == 1
        usage = usages[0]
    else:
        answer = await client.completions.create(model=MODEL, prompt=prompts, n=2)
        found = [choice.text for choice in answer.choices]
        assert [choice.index for choice in answer.choices] == list(range(6))
        assert answer.usage is not None
        usage = answer.usage
    assert found == [prompt for prompt in prompts for _ in range(2)]
    assert usage.prompt_tokens == sum(map(len, prompts))


async def test_a_prompt_may_be_token_ids(stage: Stage) -> None:
    client = stage.openai()
    await client.completions.create(model=MODEL, prompt=[1, 2, 3])
    assert list(stage.server.requests[0].prompt) == [1, 2, 3]
    with pytest.raises(openai.BadRequestError) as caught:
        await client.completions.create(model=MODEL, prompt=[1, 99_999])
    assert caught.value.param == "prompt"
    with pytest.raises(openai.BadRequestError) as empty:
        await client.completions.create(model=MODEL, prompt="")
    assert empty.value.code == "empty_prompt"


async def test_models_are_those_that_are_served(stage: Stage) -> None:
    client = stage.openai()
    models = [model async for model in client.models.list()]
    assert [model.id for model in models] == [MODEL]
    assert (await client.models.retrieve(MODEL)).id == MODEL


async def test_ready_means_that_a_model_server_serves(bare: Stage) -> None:
    await bare.add_router()
    http = bare.http()
    assert (await http.get("/health")).status_code == 200
    answer = await http.get("/ready")
    assert answer.status_code == 503
    assert answer.json()["why"] == "no model server serves"
    await bare.add_server()
    async with asyncio.timeout(5):
        await bare.router.parts.fleets.wait_for_model(MODEL, 5)
    assert (await http.get("/ready")).json() == {"status": "ready", "models": [MODEL]}


async def test_metrics_count_requests_tokens_and_times(fresh: Stage) -> None:
    client, http = fresh.openai(), fresh.http()
    await client.completions.create(model=MODEL, prompt="Say")
    loose = fresh.openai(**LOOSE)
    async for _ in await loose.completions.create(model=MODEL, prompt="Say", stream=True):
        pass
    with pytest.raises(openai.NotFoundError):
        await client.completions.create(model="made-up", prompt="Say")
    text = (await http.get("/metrics")).text
    labels = 'kind="single",model="tiny"'
    assert f"impala_ttft_seconds_count{{{labels}}} 2.0" in text
    assert f"impala_tpot_seconds_count{{{labels}}} 2.0" in text
    assert f"impala_itl_seconds_count{{{labels}}} 19.0" in text
    assert f'impala_requests_total{{code="200",{labels}}} 2.0' in text
    assert f'impala_tokens_total{{{labels},type="completion"}} 40.0' in text
    assert "made-up" not in text


async def test_long_prompts_do_not_hold_up_others(stage: Stage) -> None:
    """A prompt over the inline limit goes through the pool, and says the same."""
    stage.server.reply = lambda request, choice: [*request.prompt[-3:], stage.server.end_token]
    client = stage.openai()
    answer = await client.completions.create(model=MODEL, prompt="x" * 4087 + "abc", max_tokens=5)
    assert answer.choices[0].text == "abc"

"""Which bodies become requests, and what the others are told."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as CompletionParams

from libs.errors import InvalidArgument
from services.router.core.errors import BadRequest, ContextTooLong
from services.router.core.params import (
    CHAT,
    COMPLETIONS,
    MAX_CHOICES,
    GenerationRequest,
    SamplingParams,
    answer_budget,
    check_bias,
    check_size,
    field_of,
    parse_request,
)
from services.router.core.request_fields import (
    CHAT_IGNORED,
    CHAT_REFUSALS,
    CHAT_USED,
    COMPLETION_IGNORED,
    COMPLETION_REFUSALS,
    COMPLETION_USED,
)

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def chat(**fields: Any) -> GenerationRequest:
    return parse_request(CHAT, {"model": "m", "messages": [USER]} | fields)


def completion(**fields: Any) -> GenerationRequest:
    return parse_request(COMPLETIONS, {"model": "m", "prompt": "hi"} | fields)


def test_a_plain_request_has_neutral_defaults() -> None:
    request = chat()
    assert request.sampling == SamplingParams()
    assert (request.n, request.max_tokens, request.stop, request.stream) == (1, None, (), False)
    assert request.messages == (USER,)
    assert request.prompts == ()


def test_every_field_is_read() -> None:
    request = chat(
        temperature=0,
        top_p=0.5,
        top_k=40,
        min_p=0.1,
        seed=-7,
        presence_penalty=1,
        frequency_penalty=-1,
        logit_bias={"7": -100, "3": 1.5},
        n=2,
        stop=["a", "b", "a"],
        max_completion_tokens=9,
        min_tokens=2,
        ignore_eos=True,
        logprobs=True,
        top_logprobs=5,
        stream=True,
        stream_options={"include_usage": True},
        service_tier="flex",
        user="u",
        metadata={"k": "v"},
        prompt_cache_key="p",
        tools=[TOOL],
        tool_choice="auto",
        parallel_tool_calls=True,
    )
    assert request.sampling == SamplingParams(
        temperature=0.0,
        top_p=0.5,
        top_k=40,
        min_p=0.1,
        seed=-7,
        presence_penalty=1.0,
        frequency_penalty=-1.0,
        logit_bias=((3, 1.5), (7, -100.0)),
    )
    assert (request.n, request.stop, request.max_tokens, request.min_tokens) == (
        2,
        ("a", "b"),
        9,
        2,
    )
    assert (request.ignore_eos, request.logprobs, request.top_logprobs) == (True, True, 5)
    assert (request.stream, request.include_usage, request.service_tier) == (True, True, "flex")
    assert (request.user, request.prompt_cache_key) == ("u", "p")
    assert request.metadata == (("k", "v"),)
    assert (request.tools, request.tool_choice) == ((TOOL,), "auto")


def test_null_is_the_same_as_absent() -> None:
    names = ["temperature", "top_p", "n", "seed", "stop", "max_tokens", "tools", "tool_choice"]
    names += ["logprobs", "top_logprobs", "stream", "stream_options", "logit_bias", "user"]
    names += ["response_format", "functions", "metadata", "service_tier", "audio"]
    assert chat(**dict.fromkeys(names)) == chat()


def test_harmless_fields_are_accepted() -> None:
    assert chat(store=True, prediction={}, safety_identifier="s", include_reasoning=False) == chat()


@pytest.mark.parametrize("parse", [chat, completion])
@pytest.mark.parametrize("value", [1, None, {}])
def test_an_unknown_field_is_refused_in_openais_words(parse: Any, value: object) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(temprature=value)
    error = caught.value
    assert error.message == "Unrecognized request argument supplied: temprature"
    assert (error.param, error.code) == ("temprature", "unknown_parameter")


def test_a_field_of_the_other_endpoint_is_unknown_and_leads_there() -> None:
    prompt = r"supplied: prompt \(/v1/completions takes it\)$"
    with pytest.raises(BadRequest, match=prompt):
        chat(prompt="hi")
    messages = r"supplied: messages \(/v1/chat/completions takes it\)$"
    with pytest.raises(BadRequest, match=messages):
        completion(messages=[USER])


def test_every_field_of_the_official_client_is_known() -> None:
    for params, used, ignored, refused in (
        (ChatParams, CHAT_USED, CHAT_IGNORED, CHAT_REFUSALS),
        (CompletionParams, COMPLETION_USED, COMPLETION_IGNORED, COMPLETION_REFUSALS),
    ):
        known = [*used, *ignored, *refused]
        assert len(known) == len(set(known))
        assert set(params.__annotations__) <= set(known)


def test_requests_for_what_happens_anyway_are_accepted() -> None:
    anyway = {"response_format": {"type": "text"}, "modalities": ["text"], "echo": False}
    assert chat(**anyway, functions=[]) == chat()
    assert completion(best_of=1, suffix="", echo=False) == completion()


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"temperature": 99}, "temperature", "invalid_value"),
        ({"temperature": -0.1}, "temperature", "invalid_value"),
        ({"repetition_penalty": 1e-300}, "repetition_penalty", "invalid_value"),
        ({"repetition_penalty": 0}, "repetition_penalty", "invalid_value"),
        (
            {"logit_bias": {"0" * 11 + "9" * 30: 1}},
            "logit_bias." + "0" * 11 + "9" * 9,
            "invalid_value",
        ),
        ({"temperature": "1"}, "temperature", "invalid_type"),
        ({"temperature": True}, "temperature", "invalid_type"),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"top_p": 1.01}, "top_p", "invalid_value"),
        ({"top_k": -2}, "top_k", "invalid_value"),
        ({"min_p": 2}, "min_p", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": 17}, "n", "invalid_value"),
        ({"n": 1.5}, "n", "invalid_type"),
        ({"seed": 2**63}, "seed", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": "x"}, "max_tokens", "invalid_type"),
        ({"max_tokens": 1e30}, "max_tokens", "invalid_type"),
        ({"max_completion_tokens": -1}, "max_completion_tokens", "invalid_value"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "invalid_value"),
        ({"stop": 5}, "stop", "invalid_type"),
        ({"stop": [""]}, "stop[0]", "invalid_value"),
        ({"stop": ["a", 1]}, "stop[1]", "invalid_type"),
        ({"stop": ["a"] * 17}, "stop", "array_above_max_length"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x", "invalid_value"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "invalid_value"),
        ({"logit_bias": []}, "logit_bias", "invalid_type"),
        ({"logit_bias": {"1": 1, "01": 2}}, "logit_bias.01", "invalid_value"),
        ({"logprobs": 3}, "logprobs", "invalid_type"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"stream": "yes"}, "stream", "invalid_type"),
        ({"stream_options": 5}, "stream_options", "invalid_type"),
        ({"service_tier": "gold"}, "service_tier", "invalid_value"),
        ({"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
        ({"model": None}, "model", "missing_required_parameter"),
        ({"model": 4}, "model", "invalid_type"),
        ({"messages": None}, "messages", "missing_required_parameter"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": "hi"}, "messages", "invalid_type"),
        ({"messages": [USER, "hi"]}, "messages[1]", "invalid_type"),
        ({"tools": [5]}, "tools[0]", "invalid_type"),
        ({"tools": [TOOL, {}]}, "tools[1].type", "missing_required_parameter"),
        ({"tools": [{"type": "x"}]}, "tools[0].type", "invalid_value"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
        (
            {"tools": [{"type": "function", "function": {}}]},
            "tools[0].function.name",
            "missing_required_parameter",
        ),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "function"}}, "tool_choice", "invalid_value"),
        ({"tool_choice": "any"}, "tool_choice", "invalid_value"),
    ],
)
def test_a_bad_field_is_named(fields: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(BadRequest) as caught:
        chat(**fields)
    error = caught.value
    assert (error.param, error.code, error.status) == (param, code, 400)
    assert param in error.message
    assert error.envelope()["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"name": 5}, "name"),
        ({"tool_call_id": []}, "tool_call_id"),
        ({"refusal": False}, "refusal"),
        ({"reasoning_content": {}}, "reasoning_content"),
        ({"tool_calls": "x"}, "tool_calls"),
        ({"tool_calls": [5]}, "tool_calls[0]"),
        ({"tool_calls": [{"id": 5}]}, "tool_calls[0].id"),
        ({"tool_calls": [{"type": "custom"}]}, "tool_calls[0].type"),
    ],
)
def test_a_messages_optional_fields_have_types(message: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        chat(messages=[USER, USER | message])
    assert caught.value.param == f"messages[1].{param}"


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"include_usage": 1}, "stream_options.include_usage"),
        ({"include_obfuscation": "x"}, "stream_options.include_obfuscation"),
        ({"continuous_usage_stats": True}, "stream_options.continuous_usage_stats"),
        ({"usage": True}, "stream_options.usage"),
    ],
)
def test_stream_options_are_checked_by_name(options: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        chat(stream=True, stream_options=options)
    assert caught.value.param == param


def test_prompts_times_n_is_bounded() -> None:
    most = ["x"] * (MAX_CHOICES // 16)
    assert completion(prompt=most, n=16).n == 16
    with pytest.raises(BadRequest, match=f"at most {MAX_CHOICES}") as caught:
        completion(prompt=[*most, "x"], n=16)
    assert (caught.value.param, caught.value.code) == ("n", "too_many_choices")


@pytest.mark.parametrize(
    ("engine", "field"),
    [
        ("sampling.logit_bias", "logit_bias"),
        ("sampling.top_p", "top_p"),
        ("sampling.logprobs", "top_logprobs"),
        ("stopping.max_tokens", "max_completion_tokens"),
        ("stopping.min_tokens", "min_tokens"),
        ("prompt", "messages"),
        ("n", "n"),
        ("account_salt", None),
        (None, None),
    ],
)
def test_a_field_of_the_engine_has_its_name_in_the_request(
    engine: str | None, field: str | None
) -> None:
    assert field_of(chat(max_completion_tokens=5), engine) == field
    assert field_of(completion(logprobs=1), "logprobs") == "logprobs"


@pytest.mark.parametrize("token", [10, 99])
def test_a_bias_is_for_a_token_that_exists(token: int) -> None:
    check_bias(chat(logit_bias={"9": 1}), 10)
    with pytest.raises(BadRequest) as caught:
        check_bias(chat(logit_bias={"9": 1, str(token): 1}), 10)
    assert caught.value.param == f"logit_bias.{token}"


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        {"tools": [TOOL], "tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "look"}}},
        {"functions": [{"name": "f"}]},
        {"modalities": ["text", "audio"]},
        {"repeat_penalty": 1.1},
        {"detokenize": False},
        {"n_predict": 5},
        {"guided_regex": "a*"},
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="not supported") as caught:
        chat(**fields)
    assert caught.value.param in fields
    assert caught.value.code == "unsupported_parameter"


def test_a_refusal_names_the_field_to_use() -> None:
    with pytest.raises(BadRequest, match="use 'repetition_penalty'"):
        chat(repeat_penalty=1.2)
    with pytest.raises(BadRequest, match="beside 'model'") as caught:
        chat(options={"num_ctx": 4096, "temperature": 0})
    assert caught.value.param == "options.temperature"
    with pytest.raises(BadRequest, match="'temperature': 0"):
        chat(top_p=0)


@pytest.mark.parametrize(
    "fields",
    [
        *({"reasoning_effort": effort} for effort in ("none", "minimal", "low", "high", "xhigh")),
        {"reasoning": {"effort": "high", "exclude": True}},
        {"verbosity": "low"},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"enable_thinking": False},
        {"tool_choice": "auto"},
        {"tool_choice": "none"},
        {"tools": [], "tool_choice": "auto"},
        {"stop": ""},
        {"stop": []},
        {"stream_options": {"include_usage": True}},
        {"stream": False, "stream_options": {"include_usage": True}},
        {"usage": {"include": True}},
        {"provider": {"order": ["a"]}},
        {"transforms": ["middle-out"]},
        {"keep_alive": "5m"},
        {"keep_alive": -1},
        {"options": {"num_ctx": 8192}},
        {"cache_prompt": True},
        {"detokenize": True},
        {"repeat_penalty": 1.0},
    ],
)
def test_what_common_clients_send_is_accepted_where_it_changes_nothing(
    fields: dict[str, Any],
) -> None:
    assert chat(**fields) == chat()


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ("a",)),
        ("", ("",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
        (["a", [1]], ("a", (1,))),
    ],
)
def test_prompts_are_texts_or_token_ids(prompt: Any, prompts: tuple[Any, ...]) -> None:
    assert completion(prompt=prompt).prompts == prompts


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (None, "prompt"),
        ([], "prompt"),
        (5, "prompt"),
        ([1, "a"], "prompt[1]"),
        ([1, -1], "prompt[1]"),
        (["a", 1], "prompt[1]"),
        (["a", []], "prompt[1]"),
        ([[1], [2, True]], "prompt[1][1]"),
    ],
)
def test_a_bad_prompt_is_named(prompt: Any, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        completion(prompt=prompt)
    assert caught.value.param == param


def test_a_completion_asks_for_logprobs_by_number() -> None:
    assert (completion(logprobs=0).logprobs, completion(logprobs=0).top_logprobs) == (True, 0)
    assert completion(logprobs=3).top_logprobs == 3
    assert not completion().logprobs


@pytest.mark.parametrize("body", [None, [], "x", 3])
def test_a_body_that_is_no_object_is_refused(body: object) -> None:
    with pytest.raises(BadRequest, match="JSON object"):
        parse_request(CHAT, body)


def test_an_endpoint_that_is_not_served_is_refused() -> None:
    with pytest.raises(BadRequest, match="not served"):
        parse_request("/v1/images", {})


@pytest.mark.parametrize(("prompt", "wanted"), [(8, 2040), (2047, 1), (1, 2047)])
def test_prompt_and_answer_may_fill_the_context(prompt: int, wanted: int) -> None:
    assert answer_budget(chat(max_tokens=wanted), prompt, 2048) == wanted
    with pytest.raises(ContextTooLong):
        answer_budget(chat(max_tokens=wanted + 1), prompt, 2048)


def test_context_length_exceeded_tells_the_true_numbers() -> None:
    with pytest.raises(ContextTooLong) as caught:
        answer_budget(chat(max_tokens=2045), 8, 2048)
    error = caught.value
    assert (error.code, error.param) == ("context_length_exceeded", "max_tokens")
    for number in ("2048", "2053", "8 in the prompt", "2045"):
        assert number in error.message


def test_a_limit_that_is_too_large_is_named_as_the_client_wrote_it() -> None:
    with pytest.raises(ContextTooLong, match="lower 'max_completion_tokens'") as caught:
        answer_budget(chat(max_completion_tokens=2045), 8, 2048)
    assert caught.value.param == "max_completion_tokens"
    with pytest.raises(ContextTooLong) as alone:
        answer_budget(chat(max_tokens=1), 2048, 2048)
    assert alone.value.param == "messages"


def test_without_a_limit_the_answer_gets_the_rest_of_the_context() -> None:
    assert answer_budget(completion(), 2047, 2048) == 1
    with pytest.raises(ContextTooLong, match="2048 tokens, which leaves") as caught:
        answer_budget(completion(), 2048, 2048)
    assert caught.value.param == "prompt"


def test_min_tokens_beyond_the_limit_are_refused() -> None:
    with pytest.raises(BadRequest, match="min_tokens"):
        answer_budget(chat(max_tokens=3, min_tokens=4), 1, 100)


def test_a_text_that_cannot_fit_is_refused_by_its_size_alone() -> None:
    part = {"type": "text", "text": "x" * 600}
    messages = [USER | {"content": "y" * 400}, USER | {"content": [part]}]
    check_size(chat(messages=messages), longest_token=10, context=101)
    with pytest.raises(ContextTooLong, match="at least 100 tokens") as caught:
        check_size(chat(messages=messages), longest_token=10, context=100)
    assert caught.value.param == "messages"
    assert pickle.loads(pickle.dumps(caught.value)).envelope() == caught.value.envelope()


def test_each_prompt_is_sized_by_itself_and_in_bytes() -> None:
    check_size(completion(prompt=["é" * 40, "é" * 40]), longest_token=10, context=9)
    with pytest.raises(ContextTooLong, match="at least 8 tokens"):
        check_size(completion(prompt=["a", "é" * 40]), longest_token=10, context=8)


def test_white_space_that_a_template_may_trim_is_not_held_against_a_text() -> None:
    spaces = [USER | {"content": " " * 10_000 + "hi"}]
    check_size(chat(messages=spaces), longest_token=10, context=100)


def test_request_errors_are_invalid_arguments_and_survive_pickling() -> None:
    error = ContextTooLong(1, 2, 3, "prompt")
    assert isinstance(error, InvalidArgument)
    assert error.reason == "CONTEXT_LENGTH_EXCEEDED"
    assert pickle.loads(pickle.dumps(error)).envelope() == error.envelope()
    plain = BadRequest("m", "p", "c")
    assert pickle.loads(pickle.dumps(plain)).envelope() == plain.envelope()

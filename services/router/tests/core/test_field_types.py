"""Every accepted field of a request, honoured or without effect, refuses values of other types."""

from __future__ import annotations

from typing import Any

import pytest

from services.router.core.errors import BadRequest
from services.router.core.params import CHAT, COMPLETIONS, parse_request
from services.router.core.request_fields import (
    CHAT_IGNORED,
    CHAT_USED,
    COMPLETION_IGNORED,
    COMPLETION_USED,
    check_tags,
)

VALUES: dict[str, Any] = {
    "text": "x",
    "flag": True,
    "number": 0.5,
    "object": {"k": {}},
    "array": [{}],
    "nested": [[{}]],
}
BOTH = {
    "text": """model user prompt_cache_key service_tier safety_identifier prompt_cache_retention
        request_id rid cache_salt guided_decoding_backend guided_whitespace_pattern""",
    "flag": """stream ignore_eos store early_stopping spaces_between_special_tokens
        cache_prompt""",
    "integer": "max_tokens max_completion_tokens min_tokens n top_k seed",
    "number": """temperature top_p min_p presence_penalty frequency_penalty repetition_penalty
        length_penalty priority""",
    "object": """logit_bias metadata response_format prompt_cache_options provider usage
        options stream_options""",
    "text or number": "keep_alive",
    "array of texts": "transforms",
    "text or array": "stop",
}
CHAT_ONLY = {
    "text": "reasoning_effort verbosity",
    "flag": """logprobs parallel_tool_calls include_reasoning separate_reasoning
        stream_reasoning enable_thinking""",
    "integer": "top_logprobs",
    "object": "prediction reasoning thinking",
    "array": "messages tools",
    "text or object": "tool_choice",
}
COMPLETION_ONLY = {"integer": "best_of logprobs", "text or array": "prompt"}
TOOL = {"type": "function", "function": {"name": "look"}}


def kinds_of(*tables: dict[str, str]) -> dict[str, list[str]]:
    """Field -> the kinds it accepts."""
    return {
        name: kind.split(" or ")
        for table in tables
        for kind, names in table.items()
        for name in names.split()
    }


def refusal_of(endpoint: str, **fields: Any) -> BadRequest:
    body: dict[str, Any] = {"model": "m", "tools": [TOOL]} if endpoint == CHAT else {"model": "m"}
    body |= {"messages": [{"role": "user"}]} if endpoint == CHAT else {"prompt": "x"}
    with pytest.raises(BadRequest) as caught:
        parse_request(endpoint, body | fields)
    return caught.value


@pytest.mark.parametrize(
    ("endpoint", "kinds", "accepted"),
    [
        (CHAT, kinds_of(BOTH, CHAT_ONLY), CHAT_USED | CHAT_IGNORED.keys()),
        (COMPLETIONS, kinds_of(BOTH, COMPLETION_ONLY), COMPLETION_USED | COMPLETION_IGNORED.keys()),
    ],
)
def test_a_wrong_type_is_refused(
    endpoint: str, kinds: dict[str, list[str]], accepted: set[str]
) -> None:
    assert set(kinds) == set(accepted)
    for name, right in kinds.items():
        for kind, value in VALUES.items():
            if kind in right:
                continue
            error = refusal_of(endpoint, **{name: value})
            param = error.param or ""
            told = (param, error.code)
            assert param == name or param.startswith((f"{name}[", f"{name}.")), (name, kind, told)
            assert error.code == "invalid_type", (name, kind, told)


@pytest.mark.parametrize("tags", [[], ["a", "b"], {}, {"team": "x"}])
def test_tags_are_texts(tags: object) -> None:
    check_tags("tags", tags)


@pytest.mark.parametrize(
    ("tags", "param"),
    [(5, "tags"), ("a", "tags"), (True, "tags"), ([5], "tags[0]"), ({"k": []}, "tags.k")],
)
def test_tags_of_other_types_are_refused(tags: object, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        check_tags("tags", tags)
    assert (caught.value.param, caught.value.code) == (param, "invalid_type")

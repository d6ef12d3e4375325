"""Names of a request's fields, beyond those that are honoured.

A field that would change the answer but is not supported is refused by name, unless its value asks
for nothing. One that cannot change the answer is accepted without effect, if it has its type: the
lists below say which. Any other name is refused, so that a misspelt `temprature` is not silently
dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from services.router.core.errors import BadRequest
from services.router.core.fields import (
    Body,
    check_bool,
    check_list,
    check_number,
    check_object,
    check_str,
    unsupported,
    wrong_type,
)

_SHOWN_CHARS = 80
_MAX_CHARS = 4096
_MAX_ITEMS = 1024

_Check = Callable[[str, Any], object]

_BOTH_USED = frozenset(
    [
        "model",
        "max_tokens",
        "max_completion_tokens",
        "min_tokens",
        "n",
        "stop",
        "ignore_eos",
        "logprobs",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logit_bias",
        "stream",
        "stream_options",
        "service_tier",
        "user",
        "metadata",
        "prompt_cache_key",
        "response_format",
    ]
)
CHAT_USED = _BOTH_USED | {"messages", "tools", "tool_choice", "top_logprobs"}
COMPLETION_USED = _BOTH_USED | {"prompt", "best_of"}
_CHAT_ONLY = dict.fromkeys(CHAT_USED - COMPLETION_USED, "/v1/chat/completions")
_COMPLETION_ONLY = dict.fromkeys(COMPLETION_USED - CHAT_USED, "/v1/completions")


def _flag(name: str, value: Any) -> object:
    return check_bool(name, value)


def _text(name: str, value: Any) -> object:
    return check_str(name, value, _MAX_CHARS)


def _number(name: str, value: Any) -> object:
    return check_number(name, value, float("-inf"), float("inf"))


def _text_or_number(name: str, value: Any) -> object:
    if isinstance(value, str):
        return _text(name, value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(name, "a string or a number", value)
    return value


def _texts(name: str, value: Any) -> object:
    items = check_list(name, value, _MAX_ITEMS)
    return [_text(f"{name}[{index}]", item) for index, item in enumerate(items)]


_LOADING = frozenset(
    [
        "num_ctx",
        "num_batch",
        "num_gpu",
        "num_keep",
        "num_thread",
        "main_gpu",
        "low_vram",
        "numa",
        "use_mlock",
        "use_mmap",
    ]
)


def _options(name: str, value: Any) -> object:
    """Ollama's. How a model is loaded is the server's affair; how tokens are chosen is not dropped
    silently."""
    for key in check_object(name, value):
        if key not in _LOADING:
            known = f"{name}.{key[:_SHOWN_CHARS]}"
            raise unsupported(known, "send how to sample beside 'model', by OpenAI's names")
    return value


# Accepted without effect: name -> the type it must have.
_BOTH_IGNORED: dict[str, _Check] = {
    # OpenAI's: nothing is stored or moderated here, the prefix cache needs no hints.
    "store": _flag,
    "safety_identifier": _text,
    "prompt_cache_options": check_object,
    "prompt_cache_retention": _text,
    # Of other servers: names and priorities of requests, and what matters to beams and guides only.
    "request_id": _text,
    "rid": _text,
    "priority": _number,
    "cache_salt": _text,
    "length_penalty": _number,
    "early_stopping": _flag,
    "spaces_between_special_tokens": _flag,
    "guided_decoding_backend": _text,
    "guided_whitespace_pattern": _text,
    # Of aggregators and local servers: which provider, how long a model stays, what is cached.
    "provider": check_object,
    "transforms": _texts,
    "usage": check_object,
    "keep_alive": _text_or_number,
    "options": _options,
    "cache_prompt": _flag,
}
CHAT_IGNORED: dict[str, _Check] = _BOTH_IGNORED | {
    # A prediction only makes an answer faster, and how many calls come is the model's own choice.
    "prediction": check_object,
    "parallel_tool_calls": _flag,
    "include_reasoning": _flag,
    "separate_reasoning": _flag,
    "stream_reasoning": _flag,
    # How much a model thinks or says is the model's own: those served have no such control.
    "reasoning_effort": _text,
    "reasoning": check_object,
    "thinking": check_object,
    "enable_thinking": _flag,
    "verbosity": _text,
}
COMPLETION_IGNORED: dict[str, _Check] = _BOTH_IGNORED

# Fields that would change the answer: name -> (values that ask for nothing, why not).
_Refusals = dict[str, tuple[tuple[object, ...], str]]

_NEVER: tuple[object, ...] = ()
_GUIDED = "guided decoding is not available yet"
_BOTH_REFUSALS: _Refusals = {
    "guided_json": (_NEVER, _GUIDED),
    "guided_regex": (_NEVER, _GUIDED),
    "guided_choice": (_NEVER, _GUIDED),
    "guided_grammar": (_NEVER, _GUIDED),
    "structured_outputs": (_NEVER, _GUIDED),
    "json_schema": (_NEVER, _GUIDED),
    "regex": (_NEVER, _GUIDED),
    "ebnf": (_NEVER, _GUIDED),
    "allowed_token_ids": (_NEVER, "use 'logit_bias'"),
    "logits_processors": (([],), "there are no processors of logits"),
    "bad_words": (([],), "words cannot be banned"),
    "stop_token_ids": (([],), "use 'stop' with text"),
    "include_stop_str_in_output": ((False,), "stop strings are always left out"),
    "no_stop_trim": ((False,), "stop strings are always left out"),
    "skip_special_tokens": ((True,), "special tokens are always left out"),
    "repeat_penalty": ((1, 1.0), "use 'repetition_penalty'"),
    "n_predict": ((-1,), "use 'max_tokens'"),
    "num_predict": ((-1,), "use 'max_tokens'"),
    "typical_p": ((1, 1.0), "use 'top_p' or 'min_p'"),
    "mirostat": ((0,), "use 'temperature', 'top_p' or 'min_p'"),
    "detokenize": ((True,), "answers are text"),
    "use_beam_search": ((False,), "there is no beam search"),
    "prompt_logprobs": (_NEVER, "the prompt's tokens have no logprobs"),
    "return_token_ids": ((False,), "answers are text"),
    "return_tokens_as_token_ids": ((False,), "answers are text"),
    "return_hidden_states": ((False,), "answers are text"),
    "truncate_prompt_tokens": (_NEVER, "prompts are never cut"),
    "lora_path": (_NEVER, "there are no adapters"),
    "mm_processor_kwargs": (({},), "prompts are text only"),
    "kv_transfer_params": (({},), "the cluster moves the cache itself"),
    "vllm_xargs": (({},), "there are no such arguments"),
}
CHAT_REFUSALS: _Refusals = _BOTH_REFUSALS | {
    "functions": (([],), "use 'tools'"),
    "function_call": (("none",), "use 'tool_choice'"),
    "audio": (_NEVER, "answers are text only"),
    "modalities": ((["text"],), "answers are text only"),
    "moderation": (({},), "nothing is moderated"),
    "web_search_options": (_NEVER, "there is no web search"),
    "chat_template": (_NEVER, "the model's own template is used"),
    "chat_template_kwargs": (({},), "the model's own template is used with its defaults"),
    "documents": (([],), "put documents into messages"),
    "continue_final_message": ((False,), "answers start a new message"),
    "add_generation_prompt": ((True,), "answers start a new message"),
    "add_special_tokens": ((False,), "the model's own template has those it needs"),
    "echo": ((False,), "answers do not repeat the prompt"),
}
COMPLETION_REFUSALS: _Refusals = _BOTH_REFUSALS | {
    "suffix": (("",), "there is no insertion"),
    "echo": ((False,), "answers do not repeat the prompt"),
    "add_special_tokens": ((True,), "a prompt begins as the model's prompts do"),
    "prompt_embeds": (_NEVER, "prompts are text or token ids"),
}


def check_chat_fields(body: Body) -> None:
    """Raises BadRequest naming the first field that cannot be accepted."""
    _check(body, CHAT_USED, CHAT_IGNORED, CHAT_REFUSALS, _COMPLETION_ONLY)


def check_completion_fields(body: Body) -> None:
    """Raises BadRequest naming the first field that cannot be accepted."""
    _check(body, COMPLETION_USED, COMPLETION_IGNORED, COMPLETION_REFUSALS, _CHAT_ONLY)


def check_known(body: Body, known: frozenset[str], prefix: str = "") -> None:
    """Raises BadRequest in OpenAI's words for a name that is not `known`."""
    for name in body:
        if name not in known:
            raise unknown(prefix + name)


def unknown(name: str, endpoint: str = "") -> BadRequest:
    """endpoint: the one that knows the name, if there is one."""
    name = name[:_SHOWN_CHARS]
    message = f"Unrecognized request argument supplied: {name}"
    if endpoint:
        message += f" ({endpoint} takes it)"
    return BadRequest(message, name, "unknown_parameter")


def check_tags(name: str, value: object) -> None:
    """An array of strings, or an object of them; accepted without effect."""
    if isinstance(value, Mapping):
        named = [(f"{name}.{key}", each) for key, each in value.items()]
    elif isinstance(value, list):
        named = [(f"{name}[{index}]", each) for index, each in enumerate(value)]
    else:
        raise wrong_type(name, "an array or an object of strings", value)
    for each_name, each in named:
        check_str(each_name, each, _MAX_CHARS)


def _check(
    body: Body,
    used: frozenset[str],
    ignored: Mapping[str, _Check],
    refusals: _Refusals,
    elsewhere: Mapping[str, str],
) -> None:
    """elsewhere: names that another endpoint knows, and which."""
    for name, value in body.items():
        if name in used:
            continue
        if name not in ignored and name not in refusals:
            raise unknown(name, elsewhere.get(name, ""))
        if value is None:
            continue
        if name in ignored:
            ignored[name](name, value)
            continue
        harmless, why = refusals[name]
        if not any(_same(value, other) for other in harmless):
            raise unsupported(name, why)


def _same(value: object, other: object) -> bool:
    return type(value) is type(other) and value == other

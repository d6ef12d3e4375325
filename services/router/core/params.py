"""Bodies of /v1/chat/completions and /v1/completions as typed requests.

What happens to fields that are not honoured: `request_fields`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from services.router.core.errors import BadRequest, ContextTooLong
from services.router.core.fields import (
    Body,
    check_bool,
    check_int,
    check_list,
    check_number,
    check_str,
    missing,
    read_bool,
    read_choice,
    read_int,
    read_number,
    read_object,
    read_str,
    unsupported,
    wrong_type,
    wrong_value,
)
from services.router.core.message_fields import check_message
from services.router.core.request_fields import (
    check_chat_fields,
    check_completion_fields,
    check_known,
)
from services.router.core.tool_fields import read_tool_choice, read_tools

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

MAX_INT32 = 2**31 - 1
MAX_N = 16
MAX_STOPS = 16
MAX_STOP_CHARS = 1000
MAX_TOP_LOGPROBS = 20
MAX_PROMPTS = 1024
MAX_CHOICES = 1024
"""Answers of one request: prompts x n."""
MAX_MESSAGES = 100_000
MAX_LOGIT_BIASES = 1024
MAX_TAG_CHARS = 512
_METADATA_PAIRS, _METADATA_KEY_CHARS = 16, 64

SERVICE_TIERS = (
    "auto",
    "default",
    "flex",
    "priority",
    "scale",
    "fast",
    "asap",
    "standard",
    "batch",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen; the neutral value of each is its default."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    """In (0, 1]; 1 keeps all."""
    top_k: int = 0
    """0 keeps all."""
    min_p: float = 0.0
    """In [0, 1]; 0 keeps all."""
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, what is added to its logit), by token id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One validated request. Exactly one of `messages` and `prompts` is not empty."""

    endpoint: str
    model: str
    messages: tuple[dict[str, Any], ...] = ()
    """As sent; what is in them is checked where they are rendered (`libs.text`)."""
    prompts: tuple[str | tuple[int, ...], ...] = ()
    """Each a text or its token ids; answers of several are numbered one after the other."""
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: str | None = None
    max_tokens: int | None = None
    """Tokens per answer; None: as many as the context has room for."""
    max_tokens_field: str = "max_tokens"
    """The field's name in the request, for messages about it."""
    min_tokens: int = 0
    n: int = 1
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    sampling: SamplingParams
    stream: bool = False
    include_usage: bool = False
    service_tier: str | None = None
    user: str | None = None
    metadata: tuple[tuple[str, str], ...] = ()
    prompt_cache_key: str | None = None

    @property
    def prompt_field(self) -> str:
        return "messages" if self.messages else "prompt"


def parse_request(endpoint: str, body: object) -> GenerationRequest:
    """The request in `body`, or `BadRequest` naming the first field at fault."""
    parse = _PARSERS.get(endpoint)
    if parse is None:
        raise BadRequest(f"Requests to {endpoint} are not served.", "url", "invalid_url")
    if not isinstance(body, dict):
        raise BadRequest("The request's body must be a JSON object.", None, "invalid_type")
    return parse(body)


def check_size(request: GenerationRequest, longest_token: int, context: int) -> None:
    """Refuses, before it is tokenized, what cannot fit: no token is longer than `longest_token`
    bytes. Raises `ContextTooLong`. White space at the ends is not counted: templates may trim it.
    """
    for size in _sizes(request):
        fewest = -(-size // longest_token)
        if fewest >= context:
            raise ContextTooLong(fewest, None, context, request.prompt_field, at_least=True)


def _sizes(request: GenerationRequest) -> list[int]:
    """Bytes, at least, of each prompt's text."""
    if not request.messages:
        return [len(prompt.encode()) for prompt in request.prompts if isinstance(prompt, str)]
    return [sum(map(_message_size, request.messages))]


def _message_size(message: Mapping[str, Any]) -> int:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    return sum(len(text.strip().encode()) for text in texts if isinstance(text, str))


def check_bias(request: GenerationRequest, vocab_size: int) -> None:
    """Raises BadRequest for a biased token that the model does not have."""
    for token, _ in request.sampling.logit_bias:
        if token >= vocab_size:
            wanted = f"token ids below {vocab_size} as keys"
            raise wrong_value(f"logit_bias.{token}", wanted, token)


def field_of(request: GenerationRequest, engine_field: str | None) -> str | None:
    """The request's own name of a field that the engine refused ("sampling.logit_bias"), None
    where the request has no such field."""
    names = {"prompt": request.prompt_field, "n": "n"}
    names |= {f"sampling.{field.name}": field.name for field in fields(SamplingParams)}
    names |= {f"stopping.{name}": name for name in ("min_tokens", "ignore_eos")}
    names["stopping.max_tokens"] = request.max_tokens_field
    logprobs = "top_logprobs" if request.endpoint == CHAT else "logprobs"
    names |= dict.fromkeys(("logprobs", "sampling.logprobs"), logprobs)
    return None if engine_field is None else names.get(engine_field)


def answer_budget(request: GenerationRequest, prompt_tokens: int, context: int) -> int:
    """The most tokens one answer may have, at least 1; raises `ContextTooLong`.

    Prompt and answer may fill the context (tokens) exactly.
    """
    if prompt_tokens >= context:
        raise ContextTooLong(prompt_tokens, None, context, request.prompt_field)
    wanted = request.max_tokens
    if wanted is None:
        wanted = context - prompt_tokens
    elif prompt_tokens + wanted > context:
        raise ContextTooLong(prompt_tokens, wanted, context, request.max_tokens_field)
    if request.min_tokens > wanted:
        raise wrong_value("min_tokens", f"at most {wanted}, the answer's limit", request.min_tokens)
    return wanted


def _parse_chat(body: Body) -> GenerationRequest:
    check_chat_fields(body)
    _check_form(body)
    messages = body.get("messages")
    if messages is None:
        raise missing("messages")
    checked = check_list("messages", messages, MAX_MESSAGES)
    if not checked:
        raise wrong_value("messages", "at least one message", checked)
    for index, message in enumerate(checked):
        check_message(f"messages[{index}]", message)
    tools = read_tools(body)
    logprobs = read_bool(body, "logprobs")
    top = read_int(body, "top_logprobs", 0, MAX_TOP_LOGPROBS)
    if top and not logprobs:
        message = "'top_logprobs' is only allowed when 'logprobs' is true."
        raise BadRequest(message, "top_logprobs", "invalid_value")
    return _request(
        CHAT,
        body,
        messages=tuple(checked),
        tools=tools,
        tool_choice=read_tool_choice(body, tools),
        logprobs=logprobs,
        top_logprobs=top or 0,
    )


def _parse_completion(body: Body) -> GenerationRequest:
    check_completion_fields(body)
    _check_form(body)
    top = read_int(body, "logprobs", 0, MAX_TOP_LOGPROBS)
    best_of = read_int(body, "best_of", 1, MAX_N)
    if best_of is not None and best_of != (body.get("n") or 1):
        raise unsupported("best_of", "only the value of 'n' is, which changes nothing")
    prompts = _prompts(body.get("prompt"))
    _check_choices(len(prompts), read_int(body, "n", 1, MAX_N) or 1)
    return _request(
        COMPLETIONS,
        body,
        prompts=prompts,
        logprobs=top is not None,
        top_logprobs=top or 0,
    )


def _check_choices(prompts: int, n: int) -> None:
    if prompts * n > MAX_CHOICES:
        message = (
            f"'n' of {n} for {prompts} prompts asks for {prompts * n} answers, but a request may "
            f"have at most {MAX_CHOICES}: lower 'n', or send fewer prompts at once."
        )
        raise BadRequest(message, "n", "too_many_choices")


_PARSERS: dict[str, Callable[[Body], GenerationRequest]] = {
    CHAT: _parse_chat,
    COMPLETIONS: _parse_completion,
}


def _request(endpoint: str, body: Body, **own: Any) -> GenerationRequest:
    """What both endpoints share, and what is the endpoint's own."""
    stream = read_bool(body, "stream")
    max_tokens, field = _max_tokens(body)
    return GenerationRequest(
        endpoint=endpoint,
        model=_model(body),
        max_tokens=max_tokens,
        max_tokens_field=field,
        min_tokens=read_int(body, "min_tokens", 0, MAX_INT32) or 0,
        n=read_int(body, "n", 1, MAX_N) or 1,
        stop=_stops(body.get("stop")),
        ignore_eos=read_bool(body, "ignore_eos"),
        sampling=_sampling(body),
        stream=stream,
        include_usage=_include_usage(body, stream),
        service_tier=read_choice(body, "service_tier", SERVICE_TIERS),
        user=read_str(body, "user", MAX_TAG_CHARS),
        metadata=_metadata(body),
        prompt_cache_key=read_str(body, "prompt_cache_key", MAX_TAG_CHARS),
        **own,
    )


def _model(body: Body) -> str:
    model = body.get("model")
    if model is None:
        raise missing("model")
    return check_str("model", model, MAX_TAG_CHARS)


def _max_tokens(body: Body) -> tuple[int | None, str]:
    old = read_int(body, "max_tokens", 1, MAX_INT32)
    new = read_int(body, "max_completion_tokens", 1, MAX_INT32)
    if old is not None and new is not None and old != new:
        message = "'max_tokens' and 'max_completion_tokens' differ: give one of them."
        raise BadRequest(message, "max_tokens", "invalid_value")
    if new is not None:
        return new, "max_completion_tokens"
    return old, "max_tokens"


def _sampling(body: Body) -> SamplingParams:
    top_p = read_number(body, "top_p", 0.0, 1.0, 1.0)
    if top_p == 0.0:
        wanted = "a number above 0 and up to 1 ('temperature': 0 asks for the likeliest token)"
        raise wrong_value("top_p", wanted, body["top_p"])
    # -1 is what some clients send for "off".
    top_k = read_int(body, "top_k", -1, MAX_INT32) or 0
    return SamplingParams(
        temperature=read_number(body, "temperature", 0.0, 2.0, 1.0),
        top_p=top_p,
        top_k=max(top_k, 0),
        min_p=read_number(body, "min_p", 0.0, 1.0, 0.0),
        seed=read_int(body, "seed", -(2**63), 2**63 - 1),
        presence_penalty=read_number(body, "presence_penalty", -2.0, 2.0, 0.0),
        frequency_penalty=read_number(body, "frequency_penalty", -2.0, 2.0, 0.0),
        repetition_penalty=read_number(body, "repetition_penalty", 0.01, 100.0, 1.0),
        logit_bias=_logit_bias(body),
    )


_ID_DIGITS = 10


def _logit_bias(body: Body) -> tuple[tuple[int, float], ...]:
    biases = read_object(body, "logit_bias") or {}
    if len(biases) > MAX_LOGIT_BIASES:
        raise wrong_value("logit_bias", f"at most {MAX_LOGIT_BIASES} tokens", len(biases))
    found: dict[int, float] = {}
    for key, value in biases.items():
        name = f"logit_bias.{key[:20]}"
        is_id = key.isascii() and key.isdigit() and len(key) <= _ID_DIGITS
        if not is_id or int(key) > MAX_INT32:
            raise wrong_value(name, "token ids as keys", key)
        if int(key) in found:
            raise wrong_value(name, "each token id once", key)
        found[int(key)] = check_number(name, value, -100.0, 100.0)
    return tuple(sorted(found.items()))


def _stops(value: object) -> tuple[str, ...]:
    if value is None or value == "":
        return ()
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list):
        raise wrong_type("stop", "a string or an array of strings", value)
    check_list("stop", items, MAX_STOPS)
    for index, item in enumerate(items):
        name = "stop" if items is not value else f"stop[{index}]"
        if not check_str(name, item, MAX_STOP_CHARS):
            raise wrong_value(name, "a non-empty string", item)
    return tuple(dict.fromkeys(items))


def _prompts(value: object) -> tuple[str | tuple[int, ...], ...]:
    """A text, token ids, or an array of either."""
    if value is None:
        raise missing("prompt")
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise wrong_type("prompt", "a string or an array", value)
    if not value:
        raise wrong_value("prompt", "at least one prompt", value)
    if not isinstance(value[0], str | list):
        return (_token_ids("prompt", value),)
    check_list("prompt", value, MAX_PROMPTS)
    return tuple(_prompt(f"prompt[{index}]", item) for index, item in enumerate(value))


def _prompt(name: str, value: object) -> str | tuple[int, ...]:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value:
        return _token_ids(name, value)
    raise wrong_type(name, "a string or an array of token ids", value)


def _token_ids(name: str, values: list[Any]) -> tuple[int, ...]:
    return tuple(check_int(f"{name}[{i}]", value, 0, MAX_INT32) for i, value in enumerate(values))


_STREAM_OPTIONS = frozenset({"include_usage", "continuous_usage_stats", "include_obfuscation"})


def _include_usage(body: Body, stream: bool) -> bool:
    options = read_object(body, "stream_options")
    if options is None or not stream:
        return False
    check_known(options, _STREAM_OPTIONS, "stream_options.")
    given = {
        name: check_bool(f"stream_options.{name}", value)
        for name, value in options.items()
        if value is not None
    }
    if given.get("continuous_usage_stats"):
        raise unsupported("stream_options.continuous_usage_stats", "usage comes once, at the end")
    # `include_obfuscation` asks for padding against an observer of lengths; accepted, not done.
    return given.get("include_usage", False)


def _metadata(body: Body) -> tuple[tuple[str, str], ...]:
    pairs = read_object(body, "metadata") or {}
    if len(pairs) > _METADATA_PAIRS:
        raise wrong_value("metadata", f"at most {_METADATA_PAIRS} pairs", len(pairs))
    for key, value in pairs.items():
        check_str("metadata", key, _METADATA_KEY_CHARS)
        check_str(f"metadata.{key}", value, MAX_TAG_CHARS)
    return tuple(pairs.items())


def _check_form(body: Body) -> None:
    form = read_object(body, "response_format")
    if form is not None and form.get("type") != "text":
        if form.get("type") not in ("json_object", "json_schema"):
            raise wrong_value("response_format.type", "'text'", form.get("type"))
        raise unsupported("response_format", f"{form['type']} is not supported yet, only 'text' is")

"""Errors that a client caused, in the form every client reads.

    RequestError            status, message, type, param, code
      BadRequest            400: the request is wrong (InvalidArgument to gRPC)
        ContextTooLong      400 context_length_exceeded

The envelope is `{"error": {"message", "type", "param", "code"}}`; `param` names the field
(`messages[3].content[0].type`) and is null where no single field is at fault.
"""

from __future__ import annotations

from typing import Any

from libs.errors import ImpalaError, InvalidArgument


class RequestError(ImpalaError):
    """A request refused, with what the client needs to mend it."""

    status = 400
    type = "invalid_request_error"

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, (code or "invalid_request").upper(), param)
        self.param = param
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message, self.param, self.code), dict(self.__dict__)

    def envelope(self) -> dict[str, Any]:
        """The body of the HTTP reply."""
        return error_envelope(self.message, self.type, self.param, self.code)


class BadRequest(RequestError, InvalidArgument):
    """A field is missing, of the wrong type, out of range or not supported."""


class ContextTooLong(BadRequest):
    """Prompt and answer do not fit the model's context."""

    def __init__(
        self,
        prompt: int,
        max_tokens: int | None,
        context: int,
        param: str | None,
        at_least: bool = False,
    ) -> None:
        """at_least: the prompt was not tokenized; `prompt` is what it cannot be shorter than.
        With `max_tokens`, `param` is the field that has them: the prompt alone would fit."""
        self.prompt_tokens = prompt
        self.max_tokens = max_tokens
        self.context = context
        self.at_least = at_least
        message = _context_message(
            prompt, max_tokens, context, param, "at least " if at_least else ""
        )
        super().__init__(message, param, "context_length_exceeded")

    def __reduce__(self) -> tuple[object, ...]:
        fields = (self.prompt_tokens, self.max_tokens, self.context, self.param, self.at_least)
        return type(self), fields


def _context_message(
    prompt: int, max_tokens: int | None, context: int, param: str | None, at_least: str
) -> str:
    head = f"This model's maximum context length is {context} tokens."
    if max_tokens is None:
        return (
            f"{head} The prompt alone has {at_least}{prompt} tokens, which leaves no room for an "
            "answer. Shorten the prompt."
        )
    return (
        f"{head} You requested {prompt + max_tokens} tokens ({prompt} in the prompt, "
        f"{max_tokens} for the completion). Shorten the prompt or lower '{param}'."
    )


def error_envelope(
    message: str, type_: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """`{"error": {...}}` with all four members, always."""
    return {"error": {"message": message, "type": type_, "param": param, "code": code}}

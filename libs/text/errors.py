"""What can go wrong between messages and tokens.

TextError
  MessageError     (InvalidArgument)  a message or tool is not what it must be; `field` says where
  TemplateError    (InvalidArgument)  the model's chat template refuses these messages
  NoChatTemplate   (InvalidArgument)  the model has none: use completions
  TokenizerError   (StartupError)     the model's folder or file has no usable tokenizer
"""

from __future__ import annotations

from libs import errors


class TextError(errors.ImpalaError):
    """Base of the errors that a request can cause."""


class MessageError(TextError, errors.InvalidArgument):
    def __init__(self, field: str, message: str) -> None:
        super().__init__(message, "INVALID_MESSAGE", field)


class TemplateError(TextError, errors.InvalidArgument):
    def __init__(self, why: str) -> None:
        message = f"The model's chat template refuses these messages: {why.rstrip('.')}."
        super().__init__(message, "CHAT_TEMPLATE_ERROR", "messages")


class NoChatTemplate(TextError, errors.InvalidArgument):
    def __init__(self) -> None:
        message = "This model has no chat template: use /v1/completions."
        super().__init__(message, "NO_CHAT_TEMPLATE", "messages")


class TokenizerError(errors.StartupError):
    """One sentence that names the path and what is missing."""

"""Text and tokens: tokenizers, chat templates, incremental decoding, stop strings.

Imports neither torch nor transformers; what needs them runs in a process of its own.
"""

from libs.text.detokenizer import Detokenizer
from libs.text.errors import (
    MessageError,
    NoChatTemplate,
    TemplateError,
    TextError,
    TokenizerError,
)
from libs.text.stops import StopScanner
from libs.text.template import (
    ChatTemplate,
    Rendered,
    TokenSpan,
    chat_template,
    tokenize_rendered,
)
from libs.text.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "ChatTemplate",
    "Detokenizer",
    "MessageError",
    "NoChatTemplate",
    "Rendered",
    "StopScanner",
    "TemplateError",
    "TextError",
    "TokenSpan",
    "Tokenizer",
    "TokenizerError",
    "chat_template",
    "load_tokenizer",
    "tokenize_rendered",
]

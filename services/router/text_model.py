"""A model as text sees it: its tokenizer and its chat template, loaded once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from libs.errors import Cancelled
from libs.text import (
    ChatTemplate,
    NoChatTemplate,
    Tokenizer,
    TokenSpan,
    chat_template,
    load_tokenizer,
    tokenize_rendered,
)
from services.router.core.params import GenerationRequest


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, and where messages start among them (chat only)."""

    tokens: list[int]
    spans: tuple[TokenSpan, ...] = ()


class TextModel:
    """May be used from several threads."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self.tokenizer = tokenizer
        self.longest_token = max(
            len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size)
        )
        """Bytes."""
        self._template = template

    @classmethod
    def load(cls, path: Path, cache_dir: Path, now: Callable[[], datetime]) -> TextModel:
        """Blocking; takes seconds where a GGUF file's tokenizer is converted for the first time."""
        tokenizer = load_tokenizer(path, cache_dir)
        try:
            template: ChatTemplate | None = chat_template(tokenizer, now)
        except NoChatTemplate:
            template = None
        return cls(tokenizer, template)

    def prompts(
        self, request: GenerationRequest, is_wanted: Callable[[], bool] = lambda: True, /
    ) -> list[Prompt]:
        """The prompt of a chat, or each prompt of a completion.

        is_wanted: asked before each prompt; Cancelled is raised once it is not. Raises
        InvalidArgument.
        """
        if request.messages:
            return [self._chat(request)]
        found = []
        for prompt in request.prompts:
            if not is_wanted():
                raise Cancelled("Nobody waits for the prompts any more.", "CALLER_LEFT")
            found.append(self._prompt(prompt))
        return found

    def _chat(self, request: GenerationRequest) -> Prompt:
        if self._template is None:
            raise NoChatTemplate
        tools = () if request.tool_choice == "none" else request.tools
        rendered = self._template.render(request.messages, tools)
        return Prompt(*tokenize_rendered(self.tokenizer, rendered))

    def _prompt(self, prompt: str | tuple[int, ...]) -> Prompt:
        if isinstance(prompt, str):
            return Prompt(self.tokenizer.encode(prompt, add_special=True))
        return Prompt(list(prompt))

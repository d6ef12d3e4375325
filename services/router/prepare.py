"""From a body to a step's prompt: validated, rendered, tokenized, hashed, and found to fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from libs.hashing import account_salt, content_hashes, pack
from libs.records.batch import Job
from libs.records.members import ModelServerInfo
from services.router.call import Call
from services.router.core.errors import BadRequest
from services.router.core.params import (
    GenerationRequest,
    answer_budget,
    check_bias,
    check_size,
    parse_request,
)
from services.router.core.windows import request_window
from services.router.domain_errors import NoServer, NoSuchModel
from services.router.fleets import Fleets
from services.router.jobs import Jobs
from services.router.text_model import Prompt, TextModel
from services.router.text_models import TextModels
from services.router.tokenizing import Tokenizing

INLINE_CHARS = 2048
"""Texts up to here are rendered and tokenized on the event loop: a few milliseconds at most."""


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """One prompt that fits the model's context."""

    prompt: Prompt
    hashes: bytes
    """Content hashes of the full blocks, packed."""
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call that can run."""

    call: Call
    request: GenerationRequest
    window: str
    info: ModelServerInfo
    fleet: str
    job_id: str
    text_model: TextModel
    salt: bytes
    prompts: tuple[PreparedPrompt, ...]


class _Target(NamedTuple):
    info: ModelServerInfo
    fleet: str
    job_id: str


class Preparer:
    def __init__(
        self, fleets: Fleets, jobs: Jobs, models: TextModels, *, wait_for_server_s: float
    ) -> None:
        self._fleets = fleets
        self._jobs = jobs
        self._models = models
        self._wait_s = wait_for_server_s
        self._tokenizing = Tokenizing()

    async def prepare(self, call: Call) -> Prepared:
        """Raises RequestError, InvalidArgument, NoSuchModel or NoServer."""
        request = parse_request(call.endpoint, call.body)
        window = request_window(call.window, request.service_tier)
        target = await self._target(call, request.model)
        text_model = await self._models.load(target.info.source)
        prompts = await self._tokenize(text_model, request, target.info)
        salt = account_salt(call.account)
        return Prepared(
            call=call,
            request=request,
            window=window,
            info=target.info,
            fleet=target.fleet,
            job_id=target.job_id,
            text_model=text_model,
            salt=salt,
            prompts=tuple(
                PreparedPrompt(
                    prompt,
                    pack(content_hashes(salt, prompt.tokens)),
                    answer_budget(request, len(prompt.tokens), target.info.max_context),
                )
                for prompt in prompts
            ),
        )

    async def _target(self, call: Call, model: str) -> _Target:
        """The fleet to ask and one server's word for what it serves."""
        jobs = [job for job in self._jobs.of_account(call.account) if job.model == model]
        servers = self._fleets.servers(model)
        if not servers and (jobs or call.origin):
            servers = await self._fleets.wait_for_model(model, min(self._wait_s, call.within_s))
        if not servers:
            if jobs or call.origin:
                raise NoServer(model)
            raise NoSuchModel(model)
        fleet, job_id = _fleet_of(call, jobs)
        of_fleet = [each.info for each in servers if fleet in ("", each.info.fleet)]
        if not of_fleet:
            raise NoServer(model)
        info = max(of_fleet, key=lambda each: each.weight_seq)
        return _Target(info, fleet or info.fleet, job_id)

    async def _tokenize(
        self, text_model: TextModel, request: GenerationRequest, info: ModelServerInfo
    ) -> list[Prompt]:
        check_bias(request, info.vocab_size)
        check_size(request, text_model.longest_token, info.max_context)
        if text_size(request) <= INLINE_CHARS:
            prompts = text_model.prompts(request)
        else:
            prompts = await self._tokenizing.prompts(text_model, request)
        for index, prompt in enumerate(prompts):
            check_tokens(prompt.tokens, info.vocab_size, index, len(prompts))
        return prompts

    def close(self) -> None:
        self._tokenizing.close()


def _fleet_of(call: Call, jobs: Sequence[Job]) -> tuple[str, str]:
    """A batch runs where its run says; a single request on the account's only job, if any."""
    if call.origin is not None:
        return call.origin.fleet, call.origin.job_id
    if len(jobs) == 1:
        return jobs[0].fleet, jobs[0].id
    return "", ""


def text_size(request: GenerationRequest) -> int:
    """About how many characters are to be tokenized; cheap, and never far too low."""
    total = sum(len(prompt) for prompt in request.prompts)
    for message in request.messages:
        content = message.get("content")
        if isinstance(content, str):
            total += len(content) + 16
        else:
            total += 64 + len(str(content))
        if message.get("tool_calls"):
            total += len(str(message["tool_calls"]))
    return total + sum(len(str(tool)) for tool in request.tools)


def check_tokens(tokens: Sequence[int], vocab_size: int, index: int, count: int) -> None:
    """Raises BadRequest for a prompt without tokens, or with one that the model does not know."""
    name = "prompt" if count == 1 else f"prompt[{index}]"
    if not tokens:
        raise BadRequest(
            f"'{name}' is empty: it must have at least one token.", name, "empty_prompt"
        )
    if max(tokens) >= vocab_size:
        raise BadRequest(
            f"'{name}' has the token {max(tokens)}, but the model's ids are below {vocab_size}.",
            name,
            "invalid_value",
        )

"""What a step must satisfy before the engine sees it. Pure; every refusal names its field."""

from collections.abc import Sequence
from dataclasses import dataclass

from libs.errors import FailedPrecondition, InvalidArgument
from libs.hashing import HASH_BYTES

MAX_CHOICES = 128
MAX_STEP_ID = 128
MAX_COALESCE_S = 60.0
MIN_WATCH_S, MAX_WATCH_S = 0.05, 3600.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What this server can take."""

    model: str
    vocab_size: int
    max_context: int
    pool_tokens: int
    """Tokens of KV that the whole pool holds."""


def check_prompt(prompt: Sequence[int], limits: Limits) -> None:
    """A prompt has tokens of the model's vocabulary and leaves room for one more."""
    if not prompt:
        raise InvalidArgument("The prompt is empty.", "PROMPT_EMPTY", "prompt")
    if len(prompt) >= limits.max_context:
        raise InvalidArgument(
            f"The prompt has {len(prompt)} tokens; with a context of {limits.max_context} tokens "
            f"at most {limits.max_context - 1} leave room for an answer.",
            "CONTEXT_LENGTH_EXCEEDED",
            "prompt",
        )
    highest = max(prompt)
    if highest >= limits.vocab_size:
        raise InvalidArgument(
            f"Token {highest} is not among the model's {limits.vocab_size} tokens.",
            "TOKEN_UNKNOWN",
            "prompt",
        )


def check_coalesce(seconds: float) -> None:
    """How long deltas are collected before they are sent; 0 = the default."""
    if not 0 <= seconds <= MAX_COALESCE_S:
        raise InvalidArgument(
            f"coalesce_s is {seconds:g}, but must be from 0 to {MAX_COALESCE_S:g}.",
            "COALESCE_OUT_OF_RANGE",
            "coalesce_s",
        )


def check_interval(seconds: float) -> None:
    """How often a state is told; 0 = the default."""
    if seconds and not MIN_WATCH_S <= seconds <= MAX_WATCH_S:
        raise InvalidArgument(
            f"interval_s is {seconds:g}, but must be 0 or from {MIN_WATCH_S:g} to {MAX_WATCH_S:g}.",
            "INTERVAL_OUT_OF_RANGE",
            "interval_s",
        )


def output_room(prompt_tokens: int, max_tokens: int, limits: Limits) -> int:
    """Output tokens a choice may have: as asked, or (asked 0) what the context leaves."""
    room = min(limits.max_context, limits.pool_tokens + 1) - prompt_tokens
    if max_tokens == 0:
        return max(room, 1)
    if prompt_tokens + max_tokens > limits.max_context:
        raise InvalidArgument(
            f"The prompt of {prompt_tokens} tokens and max_tokens of {max_tokens} exceed the "
            f"context of {limits.max_context} tokens.",
            "CONTEXT_LENGTH_EXCEEDED",
            "stopping.max_tokens",
        )
    return max_tokens


def check_identity(step_id: str, model: str, salt: bytes, n: int, limits: Limits) -> None:
    """Names and counts of a request."""
    if not 1 <= len(step_id) <= MAX_STEP_ID:
        raise InvalidArgument(
            f"A step id has 1 to {MAX_STEP_ID} characters.", "STEP_ID_INVALID", "step_id"
        )
    if model != limits.model:
        raise FailedPrecondition(
            f"This server serves {limits.model!r}, not {model!r}.", "WRONG_MODEL", "model"
        )
    if len(salt) not in (0, HASH_BYTES):
        raise InvalidArgument(
            f"The account salt is {HASH_BYTES} bytes.", "SALT_INVALID", "account_salt"
        )
    if not 1 <= n <= MAX_CHOICES:
        raise InvalidArgument(f"n must be from 1 to {MAX_CHOICES}.", "N_INVALID", "n")


def check_weights(min_seq: int, served_seq: int) -> None:
    """A step never runs on weights older than it was promised."""
    if min_seq > served_seq:
        raise FailedPrecondition(
            f"The step needs weight version {min_seq} or later; version {served_seq} is served "
            "here.",
            "WEIGHTS_TOO_OLD",
            "min_seq",
        )


def check_grant(
    *,
    valid_s: float | None,
    member_id: str,
    own_id: str,
    incarnation: str,
    own_incarnation: str,
) -> None:
    """A grant is for this life of this server, and not for ever."""
    if member_id != own_id or (incarnation and incarnation != own_incarnation):
        raise FailedPrecondition(
            f"The grant is for {member_id} {incarnation}, this is {own_id} {own_incarnation}.",
            "GRANT_ELSEWHERE",
            "grant.member_id",
        )
    if valid_s is not None and valid_s <= 0:
        raise FailedPrecondition(
            "The grant's time is over; acquire a new one.", "GRANT_EXPIRED", "grant.valid_s"
        )

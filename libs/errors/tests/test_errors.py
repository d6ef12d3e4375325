"""The error tree: reasons are machine-readable, subclasses keep their parent's meaning."""

import copy
import pickle

import pytest

from libs import errors
from libs.errors import ImpalaError, InvalidArgument, ResourceExhausted, StartupError, Unavailable

CALLER_ERRORS = [
    "InvalidArgument",
    "NotFound",
    "AlreadyExists",
    "FailedPrecondition",
    "ResourceExhausted",
    "Unavailable",
    "DeadlineExceeded",
    "Aborted",
    "PermissionDenied",
    "Unauthenticated",
    "Internal",
    "Unimplemented",
    "Cancelled",
    "DataLoss",
]


@pytest.mark.parametrize("name", CALLER_ERRORS)
def test_every_class_of_the_tree_carries_message_reason_and_field(name: str) -> None:
    error = getattr(errors, name)("A sentence.", "SOME_REASON", "messages[2].role")
    assert isinstance(error, ImpalaError)
    assert (error.message, error.reason, error.field) == (
        "A sentence.",
        "SOME_REASON",
        "messages[2].role",
    )
    assert str(error) == "A sentence."


@pytest.mark.parametrize("name", CALLER_ERRORS)
def test_the_tree_at_the_head_of_the_file_names_every_class(name: str) -> None:
    assert f"── {name} " in (errors.__doc__ or "")


@pytest.mark.parametrize("reason", ["", "lower_case", "HAS SPACE", "TRAILING_", "_LEADING", "A__B"])
def test_a_reason_that_a_program_could_not_match_on_is_refused(reason: str) -> None:
    with pytest.raises(ValueError, match="SCREAMING_SNAKE_CASE"):
        InvalidArgument("A sentence.", reason)


def test_only_retryable_classes_say_when_to_retry() -> None:
    assert ResourceExhausted("Full.", "POOL_FULL", retry_after_s=1.5).retry_after_s == 1.5
    assert Unavailable("Down.", "NO_LEADER").retry_after_s is None
    assert not hasattr(InvalidArgument("Bad.", "BAD"), "retry_after_s")


@pytest.mark.parametrize("duplicate", [copy.copy, lambda e: pickle.loads(pickle.dumps(e))])
def test_an_error_crosses_a_process_border_whole(duplicate) -> None:  # type: ignore[no-untyped-def]
    twin = duplicate(ResourceExhausted("Full.", "POOL_FULL", "n", retry_after_s=2.0))
    assert (twin.message, twin.reason, twin.field, twin.retry_after_s) == (
        "Full.",
        "POOL_FULL",
        "n",
        2.0,
    )


def test_a_startup_error_is_not_something_a_request_can_be_told() -> None:
    assert not issubclass(StartupError, ImpalaError)

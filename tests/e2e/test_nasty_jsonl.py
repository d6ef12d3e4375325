"""Files that broke other systems: each gives exactly what `expected.json` beside it says."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Batch

from tests.e2e import batches
from tests.e2e.stack import Stack

FOLDER = Path(__file__).parents[1] / "data" / "nasty_jsonl"
EXPECTED: dict[str, Any] = {
    name: about["expect"]
    for name, about in json.loads((FOLDER / "expected.json").read_text()).items()
}
COMPLETING = [name for name, expect in EXPECTED.items() if expect.get("batch") == "completed"]
FAILING = [name for name, expect in EXPECTED.items() if expect.get("batch") == "failed"]
REFUSED = [name for name, expect in EXPECTED.items() if expect.get("upload") == 400]


def requests_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / name).read_bytes().split(b"\n") if line]


@dataclass(frozen=True)
class Outcome:
    """refused: the upload's error; else the batch as it ended, with its files' lines."""

    refused: openai.BadRequestError | None
    batch: Batch | None
    output: list[dict[str, Any]]
    errors: list[dict[str, Any]]


@pytest.fixture(scope="module")
def outcomes(stack: Stack) -> dict[str, Outcome]:
    """All files at once."""

    async def one(client: openai.AsyncOpenAI, name: str) -> Outcome:
        data = (FOLDER / name).read_bytes()
        try:
            file = await client.files.create(file=(name, data), purpose="batch")
        except openai.BadRequestError as error:
            return Outcome(error, None, [], [])
        batch = await client.batches.create(
            input_file_id=file.id, endpoint=batches.ENDPOINT, completion_window="24h"
        )
        batch = await batches.ended(client, batch)
        output = await batches.content(client, batch.output_file_id)
        errors = await batches.content(client, batch.error_file_id)
        return Outcome(None, batch, output, errors)

    async def all_files() -> dict[str, Outcome]:
        async with openai.AsyncOpenAI(
            base_url=f"{stack.url}/v1", api_key="none", _strict_response_validation=True
        ) as client:
            found = await asyncio.gather(*(one(client, name) for name in EXPECTED))
        return dict(zip(EXPECTED, found, strict=True))

    return asyncio.run(all_files())


def test_every_file_of_the_folder_is_expected_to_do_something() -> None:
    assert set(EXPECTED) == {path.name for path in FOLDER.glob("*.jsonl")}
    others = set(EXPECTED) - {*COMPLETING, *FAILING, *REFUSED}
    assert others == {"26_duplicate_keys.jsonl"}


@pytest.mark.parametrize("name", COMPLETING)
def test_it_completes(outcomes: dict[str, Outcome], name: str) -> None:
    expect, outcome = EXPECTED[name], outcomes[name]
    batch = outcome.batch
    assert batch is not None and batch.request_counts is not None
    assert batch.status == "completed"
    counts = batch.request_counts
    assert counts.total == expect["total"]
    assert counts.completed + counts.failed == counts.total
    assert counts.completed == expect.get("completed", counts.completed)
    assert counts.failed == expect.get("failed", counts.failed)
    assert (len(outcome.output), len(outcome.errors)) == (counts.completed, counts.failed)
    assert batch.errors is None
    answered = [line["custom_id"] for line in outcome.output + outcome.errors]
    assert len(set(answered)) == len(answered)


@pytest.mark.parametrize("name", FAILING)
def test_it_fails_in_validation(outcomes: dict[str, Outcome], name: str) -> None:
    expect, batch = EXPECTED[name], outcomes[name].batch
    assert batch is not None and batch.request_counts is not None and batch.errors is not None
    assert batch.status == "failed"
    assert batch.failed_at is not None
    first = (batch.errors.data or [])[0]
    wanted = expect["errors"][0]
    assert (first.code, first.line) == (wanted["code"], wanted["line"])
    assert batch.request_counts.total == expect["request_counts_total"]
    assert (batch.output_file_id, batch.error_file_id) == (None, None)


@pytest.mark.parametrize("name", REFUSED)
def test_its_upload_is_refused(outcomes: dict[str, Outcome], name: str) -> None:
    refused = outcomes[name].refused
    assert refused is not None
    assert refused.status_code == 400
    assert EXPECTED[name]["message_has"] in refused.message.lower()


@pytest.mark.parametrize(
    "name", ["09_nonstring_custom_id.jsonl", "21_missing_body_method_url.jsonl"]
)
def test_every_line_at_fault_is_named(outcomes: dict[str, Outcome], name: str) -> None:
    batch = outcomes[name].batch
    assert batch is not None and batch.errors is not None
    lines = [error.line for error in batch.errors.data or []]
    assert lines == list(range(1, len((FOLDER / name).read_bytes().split(b"\n"))))


def test_of_duplicate_keys_the_last_wins_or_the_line_is_refused(
    outcomes: dict[str, Outcome],
) -> None:
    outcome = outcomes["26_duplicate_keys.jsonl"]
    assert outcome.batch is not None
    if outcome.batch.status == "failed":
        errors = outcome.batch.errors
        assert errors is not None
        assert (errors.data or [])[0].code == "invalid_json_line"
    else:
        # Python's reader too takes the last.
        assert batches.ids(outcome.output) == batches.ids(requests_of("26_duplicate_keys.jsonl"))


def test_a_long_line_does_not_hold_up_the_next(outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes["22_long_line_300k.jsonl"]
    second = requests_of("22_long_line_300k.jsonl")[1]
    assert second["custom_id"] in batches.ids(outcome.output)
    for line in outcome.errors:
        assert line["response"]["status_code"] == 400
        assert line["response"]["body"]["error"]["code"] == "context_length_exceeded"


def test_odd_custom_ids_come_back_as_they_were(outcomes: dict[str, Outcome]) -> None:
    name = "28_odd_custom_ids.jsonl"
    assert batches.ids(outcomes[name].output) == batches.ids(requests_of(name))


def test_bad_requests_fail_alone_in_the_form_of_the_api(outcomes: dict[str, Outcome]) -> None:
    name = "30_mixed_valid_invalid_requests.jsonl"
    outcome = outcomes[name]
    assert batches.ids(outcome.output) == EXPECTED[name]["output_lines"]
    assert batches.ids(outcome.errors) == EXPECTED[name]["error_lines"]
    for line in outcome.errors:
        assert line["error"] is None
        assert line["response"]["status_code"] == 400
        assert set(line["response"]["body"]["error"]) == {"message", "type", "param", "code"}

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.records import ids
from libs.records.batch import TERMINAL, LedgerRecord, may_follow
from libs.records.index import ENTRY_BYTES, IndexEntry, pack_entries, unpack_entries
from libs.records.ledger_message import ledger_message
from libs.records.segment import decode_segment, encode_segment
from libs.units.durations import DurationSketch


def test_ids_of_later_objects_sort_after_earlier_ones() -> None:
    earlier = ids.batch_id(1_700_000_000_000, b"\xff" * 8)
    later = ids.batch_id(1_700_000_000_001, b"\x00" * 8)
    assert earlier < later


def test_two_ids_of_one_millisecond_differ_by_their_random_part() -> None:
    assert ids.file_id(1, b"a" * 8) != ids.file_id(1, b"b" * 8)


def test_a_fleet_name_is_one_path_segment_whatever_the_model_is_called() -> None:
    assert "/" not in ids.fleet_name("org/model:v1", "float32")


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_nothing_follows_a_terminal_status(status: str) -> None:
    everything = TERMINAL | {"validating", "in_progress", "finalizing"}
    assert not any(may_follow(status, after) for after in everything)


def test_a_batch_is_finalized_before_it_is_completed() -> None:
    assert not may_follow("in_progress", "completed")
    assert may_follow("in_progress", "finalizing") and may_follow("finalizing", "completed")


entries = st.builds(
    IndexEntry,
    st.integers(1, 2**63),
    st.integers(0, 2**63),
    st.integers(0, 2**63),
    st.binary(min_size=16, max_size=16),
    st.binary(min_size=8, max_size=8),
)


@given(st.lists(entries))
def test_an_index_reads_back_as_written(written: list[IndexEntry]) -> None:
    data = pack_entries(written)
    assert len(data) == len(written) * ENTRY_BYTES
    assert list(unpack_entries(data)) == written


def test_a_truncated_index_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple"):
        list(unpack_entries(b"x" * (ENTRY_BYTES + 1)))


def test_a_segment_keeps_the_record_bytes_untouched() -> None:
    record = b'{"custom_id":"\\u2028", "n": 1.50}'
    (line,) = decode_segment(encode_segment([(7, "error", record)]))
    assert (line.line, line.kind, bytes(line.record)) == (7, "error", record)


def test_a_damaged_segment_is_not_half_read() -> None:
    data = encode_segment([(1, "output", b"{}")])
    with pytest.raises(msgspec.DecodeError):
        list(decode_segment(data[:-4]))


def test_cost_is_reserved_engine_time_times_price() -> None:
    ledger = LedgerRecord(
        tasks=3,
        prompt_tokens=900_000,
        completion_tokens=100_000,
        busy_engine_s=1800.0,
        idle_engine_s=1800.0,
        price_per_engine_hour=0.5,
    )
    assert ledger.processing_cost == pytest.approx(0.5)
    assert ledger.price_1m_tokens == pytest.approx(0.5)
    assert ledger.tasks_per_dollar == pytest.approx(6.0)


def test_tokens_that_were_computed_and_are_in_no_recorded_line_are_wasted() -> None:
    ledger = LedgerRecord(
        prompt_tokens=100,
        cached_tokens=60,
        completion_tokens=20,
        computed_tokens=75,
        price_per_engine_hour=1.0,
    )
    assert ledger.wasted_tokens == 15
    ledger.computed_tokens = 50  # a report was lost with its server
    assert ledger.wasted_tokens == 0


def test_the_ledger_is_shown_whole_and_its_step_sized_totals_are_capped() -> None:
    tokens = 5_000_000_000
    times = DurationSketch()
    times.add(1.0)
    times.add(2.0)
    record = LedgerRecord(
        tasks=2,
        prompt_tokens=tokens,
        cached_tokens=4,
        completion_tokens=7,
        reasoning_tokens=3,
        computed_tokens=tokens + 8,
        busy_engine_s=30.0,
        idle_engine_s=6.0,
        price_per_engine_hour=100.0,
        task_seconds=times.to_list(),
        self_placed_steps=5,
    )
    shown = ledger_message(record)
    assert (shown.prompt_tokens, shown.cached_tokens, shown.completion_tokens) == (tokens, 4, 7)
    assert (shown.usage.prompt_tokens, shown.usage.reasoning_tokens) == (0xFFFFFFFF, 3)
    assert (shown.tasks, shown.self_placed_steps, shown.wasted_tokens) == (2, 5, 5)
    assert shown.processing_cost == pytest.approx(1.0)
    assert shown.task_completion_s.count == 2
    assert {field.name for field, _ in shown.ListFields()} == set(shown.DESCRIPTOR.fields_by_name)


def test_a_run_that_spent_nothing_has_no_price() -> None:
    ledger = LedgerRecord(price_per_engine_hour=1.0)
    assert (ledger.price_1m_tokens, ledger.tasks_per_dollar) == (0.0, 0.0)

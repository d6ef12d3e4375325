"""The shared reader of batch files: what a line is."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.core.batch_file import (
    LineSplitter,
    NotUtf8,
    RawLine,
    Utf8Validator,
    split_lines,
)


def lines_of(*chunks: bytes) -> list[tuple[int, bytes]]:
    return [(raw.line, raw.data) for raw in split_lines(chunks)]


def test_a_byte_order_mark_is_dropped_once_and_keeps_the_offsets_true() -> None:
    data = b"\xef\xbb\xbf{}\n\xef\xbb\xbf[]\n"
    assert list(split_lines([data])) == [
        RawLine(1, 3, 2, b"{}"),
        RawLine(2, 6, 5, b"\xef\xbb\xbf[]"),
    ]


def test_a_byte_order_mark_split_over_chunks_is_still_dropped() -> None:
    assert lines_of(b"\xef", b"\xbb", b"\xbf{", b"}\n") == [(1, b"{}")]


def test_a_file_that_is_only_part_of_a_byte_order_mark_is_a_line() -> None:
    assert lines_of(b"\xef\xbb") == [(1, b"\xef\xbb")]


def test_a_file_that_is_only_a_byte_order_mark_has_no_lines() -> None:
    assert lines_of(b"\xef\xbb\xbf") == []


def test_carriage_returns_before_newlines_and_at_the_end_are_dropped() -> None:
    assert lines_of(b"1\r\n2\r\n3\r") == [(1, b"1"), (2, b"2"), (3, b"3")]


def test_blank_lines_are_counted_but_are_no_records() -> None:
    assert lines_of(b"\n  \t\n\r\n4\n\n6") == [(4, b"4"), (6, b"6")]


def test_only_the_newline_byte_ends_a_line() -> None:
    odd = '{"a":"\u2028\u2029\u0085\x0b\x0c"}'.encode()
    assert lines_of(odd + b"\n1") == [(1, odd), (2, b"1")]


def test_a_line_of_20_megabytes_comes_out_whole() -> None:
    chunk = b"x" * (1 << 16)
    splitter = LineSplitter()
    for _ in range(320):
        assert list(splitter.push(chunk)) == []
    (raw,) = splitter.push(b"\n")
    assert raw.length == 320 << 16
    assert list(splitter.finish()) == []


@given(data=st.binary(max_size=200), cuts=st.lists(st.integers(0, 200), max_size=8))
def test_chunk_borders_never_matter(data: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    chunks = [data[a:b] for a, b in itertools.pairwise(edges)]
    assert list(split_lines(chunks)) == list(split_lines([data]))


@given(data=st.binary(max_size=200).map(lambda b: b.replace(b"a", b"\n")))
def test_the_span_of_a_line_reads_the_same_bytes_again(data: bytes) -> None:
    for raw in split_lines([data]):
        assert data[raw.offset : raw.offset + raw.length] == raw.data
        assert raw.line == data[: raw.offset].count(b"\n") + 1


def check(*chunks: bytes) -> None:
    validator = Utf8Validator()
    for chunk in chunks:
        validator.push(chunk)
    validator.finish()


def test_a_character_split_over_chunks_is_valid() -> None:
    check(*[bytes([byte]) for byte in "a\U0001f600\u00e9".encode()])


@pytest.mark.parametrize(
    ("chunks", "offset"),
    [
        ((b"abc\xff",), 3),
        ((b"abc\xe2", b"\x82", b"x"), 3),
        ((b"abc\xf0\x9f",), 3),
        (('{"a"}'.encode("utf-16-le"),), 1),
        (('{"a"}'.encode("utf-16"),), 0),
        ((b"ab", b"c\x00"), 3),
    ],
    ids=["bad byte", "cut by another character", "cut by the end", "utf-16", "utf-16 bom", "nul"],
)
def test_what_is_not_utf8_is_refused_with_its_offset(
    chunks: tuple[bytes, ...], offset: int
) -> None:
    with pytest.raises(NotUtf8, match="utf-8") as caught:
        check(*chunks)
    assert caught.value.offset == offset


@given(data=st.binary(max_size=60), cut=st.integers(0, 60))
def test_the_validator_agrees_with_python_wherever_the_chunks_end(data: bytes, cut: int) -> None:
    def accepted() -> bool:
        try:
            check(data[:cut], data[cut:])
        except NotUtf8:
            return False
        return True

    def is_text() -> bool:
        try:
            return "\0" not in data.decode()
        except UnicodeDecodeError:
            return False

    assert accepted() == is_text()

"""No request holds NaN or an infinity: no field of ours means anything by them.

They pass comparisons that were written for numbers (`nan < 0` is false), end in records that no
JSON reader takes back, and make sleeps of no time. So every server refuses them for every field,
before its handler sees the message.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from collections.abc import AsyncIterable, Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from libs.errors import InvalidArgument

_FLOATS = (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT)


def check_finite(message: object) -> None:
    """Raises InvalidArgument naming the first field (`sampling.top_p`) that is not finite."""
    if not isinstance(message, Message):
        return
    field = next(_not_finite(message), None)
    if field is not None:
        raise InvalidArgument(f"{field} must be a finite number.", "NOT_FINITE", field)


class FiniteRequests:
    """A stream's messages, each checked. Close it: what grpc.aio reads them with is a generator,
    which the garbage collector would close whenever it comes by."""

    def __init__(self, source: AsyncIterable[Any]) -> None:
        self._source: Any = aiter(source)

    def __aiter__(self) -> FiniteRequests:
        return self

    async def __anext__(self) -> Any:
        message = await anext(self._source)
        check_finite(message)
        return message

    async def discard(self, within_s: float) -> None:
        """Reads on to the client's last message, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                async for _ in self._source:
                    pass

    async def aclose(self) -> None:
        """For when nobody reads any more."""
        if hasattr(self._source, "aclose"):
            await self._source.aclose()


def _not_finite(message: Message) -> Iterator[str]:
    for field in _with_numbers(message.DESCRIPTOR):
        value = getattr(message, field.name)
        if not field.is_repeated:
            if field.message_type is None or message.HasField(field.name):
                yield from _in(field.name, value)
        elif _is_map(field):
            for key in value:
                yield from _in(f"{field.name}.{key}", value[key])
        else:
            for at, item in enumerate(value):
                yield from _in(f"{field.name}[{at}]", item)


def _in(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, Message):
        yield from (f"{name}.{inner}" for inner in _not_finite(value))
    elif not math.isfinite(value):
        yield name


@functools.cache
def _with_numbers(descriptor: Descriptor) -> tuple[FieldDescriptor, ...]:
    """The fields that are such numbers or have some within."""
    return tuple(field for field in descriptor.fields if _has_numbers(field, frozenset()))


def _has_numbers(field: FieldDescriptor, above: frozenset[str]) -> bool:
    inner = field.message_type
    if inner is None:
        return field.cpp_type in _FLOATS
    if inner.full_name in above:
        return False
    fields = [inner.fields_by_name["value"]] if _is_map(field) else inner.fields
    return any(_has_numbers(each, above | {inner.full_name}) for each in fields)


def _is_map(field: FieldDescriptor) -> bool:
    inner = field.message_type
    return inner is not None and inner.GetOptions().map_entry

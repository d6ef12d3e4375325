"""The protos under protos/impala as descriptors with their comments, and a walk over them."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[2]
PROTOS = ROOT / "protos"

# Field numbers of descriptor.proto, of which the paths of comments consist.
_FILE_MESSAGES, _FILE_ENUMS, _FILE_SERVICES = 4, 5, 6
_MESSAGE_FIELDS, _MESSAGE_MESSAGES, _MESSAGE_ENUMS = 2, 3, 4
_VALUES = _METHODS = 2


@dataclass(frozen=True, slots=True)
class Element:
    """One thing that a reader of the contract meets, by full name, with the comments on it."""

    kind: str
    name: str
    comment: str
    node: Any


@functools.cache
def impala_files() -> tuple[descriptor_pb2.FileDescriptorProto, ...]:
    """Every file of the contract, in order of name, with source information."""
    names = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.glob("impala/**/*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "descriptors"
        code = protoc.main(
            ["protoc", f"--proto_path={PROTOS}", "--include_source_info",
             f"--descriptor_set_out={out}", *names]
        )  # fmt: skip
        assert code == 0, "protoc refused the protos"
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    return tuple(files)


def elements(file: descriptor_pb2.FileDescriptorProto) -> Iterator[Element]:
    """Services, rpcs, enums, enum values, messages, fields, and the two fields of a map's entry
    (kind "entry": they have no place for a comment), in the file's order of each kind."""
    return _Walk(file).elements()


class _Walk:
    """Goes through one file with the path of each thing: that is what its comments are filed by."""

    def __init__(self, file: descriptor_pb2.FileDescriptorProto) -> None:
        self._file = file
        self._comments = {
            tuple(place.path): (place.leading_comments + place.trailing_comments).strip()
            for place in file.source_code_info.location
        }

    def elements(self) -> Iterator[Element]:
        package = self._file.package
        for index, service in enumerate(self._file.service):
            yield self._element("service", package, service, (_FILE_SERVICES, index))
            name = f"{package}.{service.name}"
            for number, method in enumerate(service.method):
                path = (_FILE_SERVICES, index, _METHODS, number)
                yield self._element("rpc", name, method, path)
        for index, enum in enumerate(self._file.enum_type):
            yield from self._in_enum(package, enum, (_FILE_ENUMS, index))
        for index, message in enumerate(self._file.message_type):
            yield from self._in_message(package, message, (_FILE_MESSAGES, index))

    def _in_enum(self, parent: str, enum: Any, path: tuple[int, ...]) -> Iterator[Element]:
        yield self._element("enum", parent, enum, path)
        for index, value in enumerate(enum.value):
            yield self._element("value", f"{parent}.{enum.name}", value, (*path, _VALUES, index))

    def _in_message(self, parent: str, message: Any, path: tuple[int, ...]) -> Iterator[Element]:
        is_entry = message.options.map_entry
        if not is_entry:
            yield self._element("message", parent, message, path)
        name = f"{parent}.{message.name}"
        for index, field in enumerate(message.field):
            kind = "entry" if is_entry else "field"
            yield self._element(kind, name, field, (*path, _MESSAGE_FIELDS, index))
        for index, enum in enumerate(message.enum_type):
            yield from self._in_enum(name, enum, (*path, _MESSAGE_ENUMS, index))
        for index, inner in enumerate(message.nested_type):
            yield from self._in_message(name, inner, (*path, _MESSAGE_MESSAGES, index))

    def _element(self, kind: str, parent: str, node: Any, path: Sequence[int]) -> Element:
        comment = self._comments.get(tuple(path), "")
        return Element(kind, f"{parent}.{node.name}", comment, node)

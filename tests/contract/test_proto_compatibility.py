"""Names, numbers and types of the contract are pinned: old and new processes talk to each other."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf import descriptor_pb2

from tests.contract.descriptors import Element, elements, impala_files
from tests.contract.golden import check_golden

Field = descriptor_pb2.FieldDescriptorProto


def test_nothing_that_others_rely_on_has_changed() -> None:
    lines = [line for file in impala_files() for each in elements(file) for line in _lines(each)]
    check_golden(
        "contract.txt",
        "\n".join(lines) + "\n",
        "The contract has changed. A '-' line breaks whoever was built before.",
    )


def test_numbers_are_given_once_within_a_message() -> None:
    for file in impala_files():
        for each in elements(file):
            if each.kind == "message":
                numbers = [field.number for field in each.node.field]
                assert len(set(numbers)) == len(numbers), each.name


def test_every_enum_begins_with_a_zero_that_says_nothing_was_chosen() -> None:
    for file in impala_files():
        for each in elements(file):
            if each.kind == "enum":
                zero = each.node.value[0]
                assert (zero.number, zero.name.endswith("_UNSPECIFIED")) == (0, True), each.name


def _lines(element: Element) -> Iterator[str]:
    """`impala.x.v1.Message.field = 3 repeated string`: one line an element, whole in itself."""
    node = element.node
    if element.kind in ("field", "entry"):
        yield f"{element.name} = {node.number} {_type(node)}"
    elif element.kind == "value":
        yield f"{element.name} = {node.number}"
    elif element.kind == "rpc":
        asked = "stream " * node.client_streaming + node.input_type.lstrip(".")
        answered = "stream " * node.server_streaming + node.output_type.lstrip(".")
        yield f"rpc {element.name}({asked}) -> {answered}"
    else:
        yield f"{element.kind} {element.name}"


def _type(field: Field) -> str:
    label = "repeated " if field.label == Field.LABEL_REPEATED else ""
    label += "optional " if field.proto3_optional else ""
    in_oneof = field.HasField("oneof_index") and not field.proto3_optional
    kind = field.type_name.lstrip(".") or Field.Type.Name(field.type).removeprefix("TYPE_").lower()
    return label + kind + (f" (oneof {field.oneof_index})" if in_oneof else "")

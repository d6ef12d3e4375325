"""Everything in the contract says what it means."""

from __future__ import annotations

import pytest
from google.protobuf import descriptor_pb2

from tests.contract.descriptors import elements, impala_files
from tests.contract.golden import unimplemented


@pytest.mark.parametrize("file", impala_files(), ids=lambda file: str(file.name))
def test_every_element_has_a_comment(file: descriptor_pb2.FileDescriptorProto) -> None:
    silent = [
        f"{each.kind} {each.name}"
        for each in elements(file)
        if each.kind != "entry" and not each.comment
    ]
    assert not silent, f"{file.name}: without a comment:\n" + "\n".join(silent)


def test_the_comments_say_which_rpcs_are_not_served() -> None:
    said = {
        each.name
        for file in impala_files()
        for each in elements(file)
        if each.kind == "rpc" and "UNIMPLEMENTED" in each.comment
    }
    assert said == {name for name, _ in unimplemented()}

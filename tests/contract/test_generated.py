"""Every proto has its generated modules, whichever build made them."""

from __future__ import annotations

from importlib import import_module

import pytest

from tests.contract.descriptors import PROTOS

MODULES = sorted(
    ".".join(path.relative_to(PROTOS).with_suffix("").parts) for path in PROTOS.rglob("*.proto")
)


@pytest.mark.parametrize("module", MODULES)
def test_messages_and_stubs_of_every_proto_can_be_imported(module: str) -> None:
    messages = import_module(f"{module}_pb2")
    stubs = import_module(f"{module}_pb2_grpc")
    assert messages.DESCRIPTOR.name == module.replace(".", "/") + ".proto"
    for service in messages.DESCRIPTOR.services_by_name:
        assert hasattr(stubs, f"{service}Stub")
        assert hasattr(stubs, f"{service}Servicer")

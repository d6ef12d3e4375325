"""A variable that nothing reads is told of, with the one that was meant."""

from __future__ import annotations

from libs.config.known import unknown_variables


def test_a_misspelt_variable_is_told_with_the_one_it_resembles() -> None:
    assert unknown_variables({"IMPALA_OBJECT": "/objects"}) == [
        "The variable IMPALA_OBJECT is ignored: no setting has this name; IMPALA_OBJECTS has."
    ]


def test_a_variable_like_no_other_is_told_alone() -> None:
    assert unknown_variables({"IMPALA_XYZZY_QUUX": "1"}) == [
        "The variable IMPALA_XYZZY_QUUX is ignored: no setting has this name."
    ]


def test_what_another_service_or_a_command_reads_is_no_mistake() -> None:
    env = {"IMPALA_MEMORY_BYTES": "1", "IMPALA_URL": "", "IMPALA_PROBE_TIMEOUT_S": "", "PATH": ""}
    assert unknown_variables(env) == []


def test_the_addresses_that_kubernetes_hands_out_are_no_settings() -> None:
    env = {
        "IMPALA_ROUTER_SERVICE_HOST": "10.0.0.1",
        "IMPALA_ROUTER_SERVICE_PORT_HTTP": "8080",
        "IMPALA_ROUTER_PORT": "tcp://10.0.0.1:8080",
        "IMPALA_ROUTER_PORT_8080_TCP": "tcp://10.0.0.1:8080",
        "IMPALA_ROUTER_PORT_8080_TCP_ADDR": "10.0.0.1",
    }
    assert unknown_variables(env) == []

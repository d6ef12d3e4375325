"""Why a service could not start."""

from __future__ import annotations

from services.cli.core.reason import reason_of

ETCD_ON_A_FULL_DISK = [
    '{"level":"warn","msg":"failed to preallocate","error":"no space left on device"}',
    '{"level":"panic","msg":"failed to create WAL","error":"no space left on device",'
    '"stacktrace":"main.main"}',
    "panic: failed to create WAL",
    "goroutine 1 [running]:",
    "\t/etcd/server/main.go:32 +0x45",
]


def test_our_services_say_it_in_a_sentence_after_their_name() -> None:
    lines = ["12:00:00 loading", "leap: There is no model.", "12:00:01 ended"]
    assert reason_of("leap", lines) == "There is no model."
    assert reason_of("router", lines) is None


def test_etcd_says_it_before_the_stack_of_its_panic() -> None:
    reason = reason_of("etcd", ETCD_ON_A_FULL_DISK)
    assert reason == "failed to create WAL: no space left on device."


def test_what_is_no_such_line_is_no_reason() -> None:
    assert reason_of("etcd", ["{", "{}", '{"level":"info","msg":"ready"}', "[1]", ""]) is None

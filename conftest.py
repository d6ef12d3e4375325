"""Refuses a test file that holds no test: it would pass for ever without checking anything."""

from __future__ import annotations

from collections.abc import Generator

import pytest

COLLECTED = pytest.StashKey[set[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[COLLECTED] = set()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Notes every test file that was read without an error."""
    report = yield
    if isinstance(collector, pytest.Module) and report.passed:
        collector.config.stash[COLLECTED].add(collector.nodeid)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Compares with the files that have a test, before any marker takes tests away."""
    with_tests = {item.nodeid.split("::")[0] for item in items}
    empty = sorted(config.stash[COLLECTED] - with_tests)
    if empty:
        raise pytest.UsageError(f"test files without a test: {', '.join(empty)}")

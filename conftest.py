"""Refuses a test file that holds no test (it would pass for ever without checking anything), and
tells which tests belong to one process when they are spread over several."""

from __future__ import annotations

from collections.abc import Generator

import pytest

SHARED = ("services/router/tests/", "tests/e2e/")
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
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(_group_of(item)))


def _group_of(item: pytest.Item) -> str:
    """What shares costly fixtures stays together: a folder with a whole stack, else a file. A long
    test is worth a fixture of its own."""
    path = item.nodeid.split("::")[0]
    shared = next((folder for folder in SHARED if path.startswith(folder)), path)
    return item.nodeid if item.get_closest_marker("slow") else shared

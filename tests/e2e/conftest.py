"""One instance for all tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import openai
import pytest

from tests.e2e.stack import Stack

FOLDER = Path(__file__).parent


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Serves the demo model as `test-model` in float32."""
    stack = Stack(tmp_path_factory.mktemp("stack"))
    stack.start()
    yield stack
    assert stack.stop() == 0


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    """The official client; it refuses an answer that is not of the documented form."""
    async with openai.AsyncOpenAI(
        base_url=f"{stack.url}/v1", api_key="none", _strict_response_validation=True
    ) as client:
        yield client


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test pays for the start, which takes long on a busy machine."""
    for item in items:
        if item.path.is_relative_to(FOLDER) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))

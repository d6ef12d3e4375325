"""Tasks that nobody waits for and that must not end by an error.

A sweep, a view of etcd, a lease's renewal: when one of them broke, what it does would stay undone
and nobody would see it. So its error goes to the event loop's handler at once, and a service's
process ends by it (`libs.rpc.lifecycle`): whoever supervises it starts a whole one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

BROKEN = "lasting_task_broken"
"""In the context of the loop's exception handler, for these tasks only."""


def lasting(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """A task that runs until it returns or is cancelled."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_tell)
    return task


def _tell(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        name = task.get_name()
        context = {"message": f"'{name}' broke", "exception": error, "task": task, BROKEN: name}
        task.get_loop().call_exception_handler(context)

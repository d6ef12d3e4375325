"""`python -m services.router.main`: the router's process."""

from __future__ import annotations

import asyncio
import sys

from libs.config import parse_config
from libs.errors import StartupError
from libs.obs import setup_logging
from libs.rpc import Shutdown, run_service
from libs.rpc.frame import cluster_of, start_metrics
from services.router.app import Router
from services.router.config import RouterConfig


async def serve(config: RouterConfig, shutdown: Shutdown) -> None:
    """Serves until the shutdown is requested, then drains."""
    start_metrics(config)
    async with cluster_of(config, shutdown):
        pass  # The router's own client finds an etcd that answers.
    async with Router(config) as router:
        waits = [asyncio.create_task(event.wait()) for event in (shutdown, router.superseded)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if router.superseded.is_set():
            raise StartupError(
                "Another process has registered as this router; give each its own --member name."
            )


def main() -> None:
    config = parse_config(RouterConfig, sys.argv[1:], prog="router")
    setup_logging("router", config.member, as_json=config.log_json, level=config.log_level)
    run_service(lambda shutdown: serve(config, shutdown), name="router")


if __name__ == "__main__":
    main()

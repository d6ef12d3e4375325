"""Waiting for what passes: an etcd that is away, full, or refuses access (errors.PASSING).

Whoever must go on repeats; this says how long it rests between two tries, and tells the log once
when trouble begins or changes, and again now and then, rather than at every try.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from libs.cluster.errors import ClusterError, PermissionRefused, StoreFull

RETRY_S = 0.2
MENDED_BY_HAND_S = 1.0
"""Between tries where a person has to do something first; each is refused at once."""
REPEAT_S = 30.0


class Patience:
    """One for each thing that is tried again and again; `who` begins its log lines."""

    def __init__(
        self,
        who: str,
        log: logging.Logger,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._who = who
        self._sleep = sleep
        self._log = log
        self._told: tuple[type[ClusterError], float] | None = None

    async def rest(self, error: ClusterError) -> None:
        by_hand = isinstance(error, PermissionRefused | StoreFull)
        now = asyncio.get_running_loop().time()
        told = self._told
        if told is None or told[0] is not type(error) or now - told[1] >= REPEAT_S:
            self._told = type(error), now
            level = logging.ERROR if by_hand else logging.WARNING
            self._log.log(level, "%s waits: %s", self._who, error)
        await self._sleep(MENDED_BY_HAND_S if by_hand else RETRY_S)

    def over(self) -> None:
        """It went well: the next trouble is a new one."""
        if self._told is not None:
            self._told = None
            self._log.info("%s goes on", self._who)

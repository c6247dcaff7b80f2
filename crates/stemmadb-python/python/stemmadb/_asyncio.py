"""Feeds for `async for`."""

from __future__ import annotations

import asyncio
from typing import Any

# How long a thread waits at once. A cancelled task leaves its thread waiting this long at most.
_SLICE = 0.25


class AsyncFeed:
    """Awaits the items of a feed, which threads of the loop's executor wait for."""

    def __init__(self, feed: Any) -> None:
        self._feed = feed
        self._waiting: asyncio.Future[Any] | None = None

    def _step(self) -> tuple[bool, Any]:
        try:
            return True, self._feed.next_within(_SLICE)
        except StopIteration:
            return False, None

    def __aiter__(self) -> AsyncFeed:
        return self

    async def __anext__(self) -> Any:
        while True:
            # A wait that outlived a cancelled task has its item for the next one.
            if self._waiting is None:
                self._waiting = asyncio.get_running_loop().run_in_executor(None, self._step)
            is_open, item = await asyncio.shield(self._waiting)
            self._waiting = None
            if not is_open:
                raise StopAsyncIteration
            if item is not None:
                return item

"""An event loop that ends while a browser or a decoder starts: it does not hang, and no process is left.

`asyncio.run` cancels everything when its coroutine returns, at whatever moment that is.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable

import pytest
from chromium import find_chromium
from page_site import make_image

from holdfast.egress import EgressAllowlist, EgressPolicy
from holdfast.systems.capture import BrowserOptions, BrowserPool, MediaDecoder
from holdfast.systems.capture.chromium_launcher import find_descendants

pytestmark = pytest.mark.timeout(60)
LOOP_STEPS = [0, 1, 2, 5, 20]


async def begin_and_return(work: Awaitable[object], steps: int) -> None:
    task = asyncio.ensure_future(work)
    for _ in range(steps):
        await asyncio.sleep(0)
    assert not task.done()


@pytest.mark.parametrize("steps", LOOP_STEPS)
def test_a_decoder_that_starts_does_not_hang_the_end(steps: int) -> None:
    before, image = set(find_descendants(os.getpid())), make_image(8, 8)

    async def decode() -> None:
        async with MediaDecoder() as decoder:
            await decoder.decode_image(image)

    asyncio.run(begin_and_return(decode(), steps))
    assert set(find_descendants(os.getpid())) <= before


@pytest.mark.parametrize("steps", LOOP_STEPS)
def test_a_browser_that_starts_does_not_hang_the_end(steps: int) -> None:
    assert find_chromium()
    before = set(find_descendants(os.getpid()))

    async def open_page() -> None:
        policy = EgressPolicy(allowlist=EgressAllowlist.parse("127.0.0.1"))
        async with BrowserPool(policy, BrowserOptions()) as pool, pool.open_page():
            await asyncio.sleep(60)

    asyncio.run(begin_and_return(open_page(), steps))
    assert set(find_descendants(os.getpid())) <= before

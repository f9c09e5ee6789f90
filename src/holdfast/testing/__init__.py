"""Tools for tests: a real database for each test, a clock that you can move, and your tasks run in the test.

The pytest plug-in comes with the package. A test that takes the fixture `hf` uses it:

    async def test_bookmark_gets_a_screenshot(hf: Holdfast) -> None:
        await add_bookmark("https://example.org")
        hf.assert_submitted(screenshot, url="https://example.org")
        await hf.drain()

Asynchronous tests need `asyncio_mode = "auto"` in `[tool.pytest.ini_options]`. See docs/guide/testing.md.
"""

from holdfast.testing.clock import Clock
from holdfast.testing.drain import AttemptResult, ConsumedMessage, DrainResult
from holdfast.testing.harness import Holdfast, SubmittedTask
from holdfast.testing.kill_replay import ReplayResult
from holdfast.testing.polling import wait_until

__all__ = [
    "AttemptResult",
    "Clock",
    "ConsumedMessage",
    "DrainResult",
    "Holdfast",
    "ReplayResult",
    "SubmittedTask",
    "wait_until",
]

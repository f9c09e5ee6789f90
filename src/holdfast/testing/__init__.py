"""For tests: a real database each, a clock you can move, and your tasks run in the test.

With the pytest plug-in, which comes with the package, a test asks for the fixture `hf`:

    async def test_a_bookmark_gets_a_picture(hf: Holdfast) -> None:
        await add_bookmark("https://example.org")
        hf.assert_submitted(screenshot, url="https://example.org")
        await hf.drain()

docs/guide/testing.md tells the rest.
"""

from holdfast.testing.clock import Clock
from holdfast.testing.harness import Holdfast, Submitted
from holdfast.testing.replaying import Replayed
from holdfast.testing.running import Drained, Handled, Ran
from holdfast.testing.waiting import eventually

__all__ = ["Clock", "Drained", "Handled", "Holdfast", "Ran", "Replayed", "Submitted", "eventually"]

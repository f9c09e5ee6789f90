"""The progress of a report shows the text that a language model is writing."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from provider_server import LOOPBACK_POLICY, make_config, run_provider_server
from system_harness import SystemHarness

from holdfast.systems.providers.openai_text import OpenAITextProvider
from holdfast.testing import wait_until

CHUNK = {"choices": [{"index": 0, "delta": {"content": "Ann and Bo met in the rain"}}]}


async def test_the_progress_shows_the_end_of_the_text_while_it_is_written(
    reports_system: SystemHarness,
) -> None:
    ann = reports_system.create_user()
    params = {"person1": {"name": "Ann"}, "person2": {"name": "Bo"}, "systems": ["western"]}
    started = await ann.post("/api/jobs/start", {"type": "nuclear_v2", "params": params})
    path = f"/api/jobs/{started.json()['id']}"
    content = f"data: {json.dumps(CHUNK)}\n\n".encode()
    # The server sends the beginning of a longer answer, and then waits.
    headers = {"content-type": "text/event-stream", "content-length": str(len(content) + 100)}
    async with run_provider_server() as server:
        server.respond = lambda *_: (200, headers, content)
        provider = OpenAITextProvider(make_config(server, "text"), policy=LOOPBACK_POLICY)
        async with reports_system.run_worker(text_provider=provider, concurrency=2):

            async def find_shown_text() -> Any:
                progress = (await ann.get(path)).json()["progress"]
                return progress if "met in the rain" in (progress["message"] or "") else None

            progress = await wait_until(find_shown_text, within=timedelta(seconds=60))
            assert (await ann.delete(path)).status_code == 200
    assert progress["phase"] == "text"
    assert progress["message"].endswith(": …Ann and Bo met in the rain")

"""Run by an interpreter that has the PyPI client `pgmq`: its documented calls, on one of its four clients.

    python pgmq_client.py postgresql://... sync|async|sqlalchemy|sqlalchemy-async

Exits with a traceback when an answer is not what its documentation promises.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

MODULES = {
    "sync": "pgmq.queue",
    "async": "pgmq.async_queue",
    "sqlalchemy": "pgmq.sqlalchemy_queue",
    "sqlalchemy-async": "pgmq.sqlalchemy_async_queue",
}


class Queue:
    """The four clients as one: every call is awaited, whether it needs to be or not."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **named: Any) -> Any:
            answer = getattr(self.client, name)(*arguments, **named)
            return await answer if inspect.isawaitable(answer) else answer

        return call


async def quick_start(queue: Queue) -> None:
    await queue.create_queue("my_queue")
    assert await queue.send("my_queue", {"hello": "world"}) == 1
    assert await queue.send_batch("my_queue", [{"foo": "bar"}, {"baz": "qux"}]) == [2, 3]
    message = await queue.read("my_queue", vt=30)
    assert (message.msg_id, message.message, message.read_ct) == (1, {"hello": "world"}, 1)
    assert await queue.archive("my_queue", message.msg_id) is True
    assert [each.msg_id for each in await queue.read_batch("my_queue", vt=30, batch_size=10)] == [2, 3]
    assert await queue.delete("my_queue", 2) is True
    assert await queue.delete("my_queue", 2) is False
    metrics = await queue.metrics("my_queue")
    assert (metrics.queue_length, metrics.total_messages) == (1, 3)
    assert [each.queue_name for each in await queue.list_queues()] == ["my_queue"]
    assert len(await queue.metrics_all()) == 1
    assert await queue.purge("my_queue") == 1
    assert await queue.drop_queue("my_queue") is True


async def delays_and_headers(queue: Queue) -> None:
    await queue.create_queue("later", unlogged=True)
    soon = datetime.now(UTC) + timedelta(hours=1)
    await queue.send("later", {"n": 1}, headers={"h": 1})
    await queue.send("later", {"n": 2}, delay=3600)
    await queue.send("later", {"n": 3}, delay=soon)
    await queue.send("later", {"n": 4}, headers={"h": 1}, delay=3600)
    await queue.send_batch("later", [{"n": 5}, {"n": 6}], headers=[{"h": 5}, {"h": 6}])
    await queue.send_batch("later", [{"n": 7}], delay=soon)
    messages = await queue.read_batch("later", vt=30, batch_size=10)
    assert [each.msg_id for each in messages] == [1, 5, 6]
    assert messages[1].headers == {"h": 5}
    moved = await queue.set_vt("later", 1, 0)
    assert moved.msg_id == 1
    assert (await queue.pop("later")).msg_id == 1
    assert await queue.delete_batch("later", [2, 5, 99]) == [2, 5]
    assert await queue.archive_batch("later", [6, 7]) == [6, 7]
    messages = await queue.read_with_poll("later", vt=30, qty=1, max_poll_seconds=1, poll_interval_ms=50)
    assert not messages
    await queue.drop_queue("later")


async def groups_and_topics(queue: Queue) -> None:
    await queue.create_queue("orders")
    await queue.create_fifo_index("orders")
    await queue.create_fifo_indexes_all()
    group = {"x-pgmq-group": "a"}
    await queue.send_batch("orders", [{"n": 1}, {"n": 2}], headers=[group, group])
    assert [each.msg_id for each in await queue.read_grouped("orders", 30, 10)] == [1, 2]
    assert await queue.read_grouped_rr("orders", 30, 10) == []
    await queue.bind_topic("logs.*", "orders")
    assert await queue.validate_routing_key("logs.error") is True
    assert await queue.validate_topic_pattern("logs.#") is True
    assert await queue.send_topic("logs.error", {"m": 1}) == 1
    assert await queue.send_topic("logs.error", {"m": 2}, headers={"h": 1}) == 1
    assert await queue.send_topic("logs.error", {"m": 3}, delay=5) == 1
    assert len(await queue.send_batch_topic("logs.error", [{"m": 4}, {"m": 5}])) == 2
    assert [each.pattern for each in await queue.list_topic_bindings()] == ["logs.*"]
    assert len(await queue.test_routing("logs.error")) == 1
    assert await queue.unbind_topic("logs.*", "orders") is True
    await queue.drop_queue("orders")


async def notifications(queue: Queue) -> None:
    await queue.create_queue("Bell")
    await queue.enable_notify("Bell", throttle_interval_ms=0)
    await queue.update_notify("Bell", 1)
    throttles = await queue.list_notify_throttles()
    assert [(each.queue_name, each.throttle_interval_ms) for each in throttles] == [("Bell", 1)]
    await queue.send("Bell", {"ding": 1})
    await queue.disable_notify("Bell")
    await queue.detach_archive("Bell")
    await queue.drop_queue("Bell")


async def listening(queue: Queue) -> None:
    """Its own listener hears a send on a name with capitals."""
    listener_module = import_module("pgmq.notify_listener")
    await queue.create_queue("Bell")
    await queue.enable_notify("Bell", throttle_interval_ms=0)
    listener = listener_module.SyncNotificationListener(queue.client)
    notified = threading.Event()
    thread = threading.Thread(target=listener.listen, args=("Bell", lambda _: notified.set()), daemon=True)
    thread.start()
    for _ in range(100):  # the listener does not tell when it is ready
        await queue.send("Bell", {"ding": 1})
        if await asyncio.to_thread(notified.wait, 0.1):
            break
    assert notified.is_set()
    listener.stop()
    await queue.drop_queue("Bell")


async def main(url: str, variant: str) -> None:
    parts = urlsplit(url)
    client = import_module(MODULES[variant]).PGMQueue(
        conn_string=None,
        host=parts.hostname,
        port=str(parts.port or 5432),
        database=parts.path.lstrip("/"),
        username=parts.username,
        password=parts.password or "",
        pool_size=2,
        init_extension=False,
    )
    queue = Queue(client)
    if hasattr(client, "init"):
        await queue.init()
    for example in (quick_start, delays_and_headers, groups_and_topics, notifications):
        await example(queue)
    if variant == "sync":
        await listening(queue)
    if hasattr(client, "close"):
        await queue.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))

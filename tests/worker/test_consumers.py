"""Consumers in real worker processes: killed, stopped, blocked, poisoned."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from datetime import timedelta
from pathlib import Path

import letters_app
import pytest
from worker_processes import WorkerProcesses

from holdfast import Client
from holdfast.engine.connection import Connection
from holdfast.testing import wait_until

SOON = timedelta(seconds=40)


@pytest.fixture(autouse=True)
def letters(workers: WorkerProcesses, tmp_path: Path) -> None:
    workers.app = Path(letters_app.__file__)


@pytest.fixture
async def ready(workers: WorkerProcesses, client: Client) -> None:
    """Queues of the tests that send before a worker has made them."""
    for queue in ("short", "waits", "plain", "hour", "blocks", "gil", "Poison", "kept", "first", "second"):
        await client.queues.create(queue)


async def count_archived_messages(client: Client, queue: str) -> int:
    return (await client.queues.metrics(queue)).archived


async def test_worker_creates_queues_and_archives_processed_messages(
    workers: WorkerProcesses, client: Client
) -> None:
    await workers.start()

    async def created() -> bool:
        return "short" in {queue.name for queue in await client.queues.list()}

    await wait_until(created, within=SOON)
    sent = await client.queues.send("short", {"number": 7})
    await wait_until(lambda: workers.has_recorded("short", 7, 1), within=SOON)

    async def kept() -> bool:
        return [m.id for m in await client.queues.peek("short", place="archive")] == [sent]

    await wait_until(kept, within=SOON)


@pytest.mark.usefixtures("ready")
async def test_message_of_a_killed_worker_is_processed_by_another_worker(
    workers: WorkerProcesses, client: Client
) -> None:
    victim = await workers.start()
    await client.queues.send("waits", "gate")
    await wait_until(lambda: workers.has_recorded("began", "gate", 1), within=SOON)
    victim.send_signal(signal.SIGKILL)
    await workers.start()
    await wait_until(lambda: workers.has_recorded("began", "gate", 2), within=SOON)
    workers.open_gate("gate")
    await wait_until(lambda: workers.has_recorded("ended", "gate", 2), within=SOON)
    await wait_until(lambda: count_archived_messages(client, "waits"), within=SOON)


@pytest.mark.usefixtures("ready")
async def test_message_of_a_killed_worker_is_visible_before_its_vt_ends(
    workers: WorkerProcesses, client: Client, conn: Connection
) -> None:
    victim = await workers.start()
    await client.queues.put_policy("hour", backoff=timedelta(milliseconds=50))
    await client.queues.send("hour", "gate")
    await wait_until(lambda: workers.has_recorded("began", "gate", 1), within=SOON)
    victim.send_signal(signal.SIGKILL)

    async def failed() -> bool:
        [message] = await client.queues.peek("hour")
        return "WorkerLost" in (message.error or "")

    await wait_until(failed, within=SOON)
    await workers.start()
    await wait_until(lambda: workers.has_recorded("began", "gate", 2), within=SOON)
    workers.open_gate("gate")
    await wait_until(lambda: count_archived_messages(client, "hour"), within=SOON)
    assert await conn.fetchval("select count(*) from holdfast.message_errors") == 0


@pytest.mark.usefixtures("ready")
@pytest.mark.parametrize("queue", ["waits", "plain"])
async def test_stopped_worker_makes_its_messages_visible_at_once(
    workers: WorkerProcesses, client: Client, conn: Connection, queue: str
) -> None:
    leaving = await workers.start("--grace", "100ms")
    await client.queues.send(queue, "gate")
    await wait_until(lambda: workers.has_recorded("began", "gate", 1), within=SOON)
    leaving.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(leaving.wait(), 30) == 0
    log = (workers.folder / "worker0.log").read_text()
    assert "outcome=delay" in log
    # Visible since the worker left, although its vt would have hidden it for longer.
    left = await conn.fetchval(f"select vt - last_read_at from pgmq.q_{queue}")
    held = await conn.fetchval(f"select now() - last_read_at from pgmq.q_{queue}")
    assert left <= held
    [message] = await client.queues.read(queue)
    assert message.reads == 2


@pytest.mark.usefixtures("ready")
async def test_stopped_worker_lets_running_consumers_finish(workers: WorkerProcesses, client: Client) -> None:
    leaving = await workers.start("--grace", "30s")
    await client.queues.send("waits", "gate")
    await wait_until(lambda: workers.has_recorded("began", "gate", 1), within=SOON)
    leaving.send_signal(signal.SIGTERM)
    workers.open_gate("gate")
    assert await asyncio.wait_for(leaving.wait(), 30) == 0
    assert workers.has_recorded("ended", "gate", 1)
    assert await count_archived_messages(client, "waits") == 1


@pytest.mark.usefixtures("ready")
@pytest.mark.parametrize(("how", "body"), [("blocks", 5.0), ("gil", 5_000_000)])
async def test_message_stays_invisible_while_its_consumer_blocks_the_process(
    workers: WorkerProcesses, client: Client, how: str, body: float
) -> None:
    """The function blocks for more than two visibility timeouts while another worker stands by to read."""
    await workers.start()
    await client.queues.send(how, body)
    await wait_until(lambda: workers.has_recorded("began", how, 1), within=SOON)
    await workers.start()
    await wait_until(lambda: count_archived_messages(client, how), within=SOON)
    assert [line[1:] for line in workers.read_record_lines()] == [["began", how, "1"], ["ended", how, "1"]]
    assert "message.lease_lost" not in (workers.folder / "worker0.log").read_text()


@pytest.mark.usefixtures("ready")
async def test_failing_message_moves_to_dead_letters_with_its_error(
    workers: WorkerProcesses, client: Client
) -> None:
    await client.queues.put_policy("Poison", dead_letters="graves", backoff=timedelta(milliseconds=50))
    sent = await client.queues.send_batch("poison", [{"number": n} for n in (1, 2, 3)] + [{"numbr": 4}])
    await workers.start()

    async def dead() -> bool:
        return (await client.queues.metrics("Poison")).total == 0

    await wait_until(dead, within=SOON)
    graves = {m.headers["x-holdfast-dead"]["msg_id"]: m for m in await client.queues.peek("graves", qty=9)}
    errors = {sent.index(i): m.headers["x-holdfast-dead"]["error"] for i, m in graves.items()}
    assert sorted(errors) == [0, 1, 3]
    assert errors[0].startswith("ValueError: number one\n")
    assert "letters_app.py" in errors[0]
    assert errors[1].startswith("Reject: never")
    assert "missing required field `number`" in errors[3]
    runs = Counter(line[2] for line in workers.read_record_lines() if line[1] == "poison")
    assert runs == {"1": 3, "2": 1, "3": 2}
    await wait_until(lambda: sum(line[1] == "dead" for line in workers.read_record_lines()) == 3, within=SOON)
    hooks = {line[2]: line[3] for line in workers.read_record_lines() if line[1] == "dead"}
    assert hooks == {str(sent[0]): "ValueError:", str(sent[1]): "Reject:", str(sent[3]): "InvalidError:"}
    assert await count_archived_messages(client, "Poison") == 1


@pytest.mark.long
@pytest.mark.usefixtures("ready")
async def test_message_that_kills_workers_moves_to_dead_letters_after_max_reads(
    workers: WorkerProcesses, client: Client
) -> None:
    await client.queues.send("Poison", {"number": 4})
    for reads in (1, 2, 3):
        victim = await workers.start()
        assert await asyncio.wait_for(victim.wait(), 40) == -signal.SIGKILL
        assert workers.has_recorded("poison", 4, reads)
    await workers.start()
    await wait_until(
        lambda: any(line[1:3] == ["dead", "1"] for line in workers.read_record_lines()), within=SOON
    )
    [grave] = await client.queues.peek("Poison", place="dead")
    assert (
        grave.headers["x-holdfast-dead"]["error"]
        == "The message was read 4 times and never finished; the limit is 3."
    )
    assert sum(line[1] == "poison" for line in workers.read_record_lines()) == 3


@pytest.mark.usefixtures("ready")
async def test_done_send_and_insert_commit_in_one_transaction(
    workers: WorkerProcesses, client: Client, conn: Connection
) -> None:
    await conn.execute("create table written (what text)")
    await client.queues.send_batch("first", ["commit", "rollback"])
    await workers.start()
    await wait_until(lambda: workers.has_recorded("first", "rollback", 2), within=SOON)
    assert workers.has_recorded("first", "rollback", 1)
    assert workers.has_recorded("first", "commit", 1)

    async def gone() -> bool:
        return (await client.queues.metrics("first")).total == 0

    await wait_until(gone, within=SOON)
    written = [row["what"] for row in await conn.fetch("select what from written")]
    assert written == ["commit 1", "rollback 2"]
    assert [m.body for m in await client.queues.read("second", qty=9)] == ["commit", "rollback"]
    assert await count_archived_messages(client, "first") == 2


@pytest.mark.usefixtures("ready")
async def test_done_in_a_plain_function_longer_than_vt_does_not_delay_other_messages(
    workers: WorkerProcesses, client: Client, conn: Connection
) -> None:
    await conn.execute("create table written (what text)")
    await workers.start()
    await client.queues.send("kept", "slow")
    await wait_until(lambda: workers.has_recorded("done", "slow", 1), within=SOON)
    await client.queues.send("waits", "gate")
    await wait_until(lambda: workers.has_recorded("began", "gate", 1), within=SOON)

    async def extended() -> bool:
        [message] = await client.queues.peek("waits")
        assert message.read_at is not None
        return message.visible_at - message.read_at > 3 * letters_app.VT

    await wait_until(extended, within=SOON)  # while the transaction of the other one holds its row
    for name in ("slow", "gate"):
        workers.open_gate(name)
    await wait_until(lambda: count_archived_messages(client, "waits"), within=SOON)

    async def gone() -> bool:
        return (await client.queues.metrics("kept")).total == 0

    await wait_until(gone, within=SOON)
    assert await count_archived_messages(client, "kept") == 0  # this consumer deletes
    assert [row["what"] for row in await conn.fetch("select what from written")] == ["slow 1"]
    assert not workers.has_recorded("done", "slow", 2)


@pytest.mark.usefixtures("ready")
async def test_exception_after_done_rolls_back_and_repeats_the_message(
    workers: WorkerProcesses, client: Client, conn: Connection
) -> None:
    await conn.execute("create table written (what text)")
    await client.queues.put_policy("kept", backoff=timedelta(milliseconds=50))
    workers.open_gate("raises")
    await client.queues.send("kept", "raises")
    await workers.start()

    async def written() -> bool:
        return bool(await conn.fetch("select from written where what = 'raises 2'"))

    await wait_until(written, within=SOON)
    assert await conn.fetchval("select count(*) from written") == 1


@pytest.mark.usefixtures("ready")
@pytest.mark.parametrize("queue", ["waits", "plain"])
async def test_consumer_is_stopped_when_another_reader_has_its_message(
    workers: WorkerProcesses, client: Client, queue: str
) -> None:
    await workers.start()
    sent = await client.queues.send(queue, "gate")
    await wait_until(lambda: workers.has_recorded("began", "gate", 1), within=SOON)

    async def stolen() -> bool:
        await client.queues.set_vt(queue, sent, timedelta(0))
        return any(m.id == sent for m in await client.queues.read(queue, vt=timedelta(hours=1)))

    await wait_until(stolen, within=SOON)
    log = workers.folder / "worker0.log"
    await wait_until(lambda: "outcome=stopped" in log.read_text(), within=SOON)
    assert not workers.has_recorded("ended", "gate", 1)
    rows = await client.queues.metrics(queue)
    assert (rows.in_flight, rows.archived) == (1, 0)


@pytest.mark.usefixtures("ready")
async def test_two_workers_process_each_message_once(workers: WorkerProcesses, client: Client) -> None:
    await client.queues.send_batch("short", [{"number": n} for n in range(500)])
    await workers.start()
    await workers.start()

    async def all_archived() -> bool:
        return await count_archived_messages(client, "short") == 500

    await wait_until(all_archived, within=SOON)
    assert sorted(int(line[2]) for line in workers.read_record_lines()) == list(range(500))
    assert {line[3] for line in workers.read_record_lines()} == {"1"}


@pytest.mark.usefixtures("ready")
async def test_work_goes_on_after_every_connection_was_cut(
    workers: WorkerProcesses, client: Client, conn: Connection
) -> None:
    await workers.start()
    await client.queues.send("waits", "gate")
    await wait_until(lambda: workers.has_recorded("began", "gate", 1), within=SOON)
    await conn.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()"
        " and datname = current_database()"
    )
    workers.open_gate("gate")
    await client.close()
    await wait_until(lambda: count_archived_messages(client, "waits"), within=SOON)
    await client.queues.send("short", {"number": 2})
    await wait_until(lambda: workers.has_recorded("short", 2, 1), within=SOON)


async def test_missing_queue_stops_the_worker_with_an_error(workers: WorkerProcesses, tmp_path: Path) -> None:
    app = tmp_path / "strict_app.py"
    app.write_text("from holdfast import consumer\n@consumer(queue='nowhere')\ndef c(msg): ...\n")
    workers.app = app
    process = await workers.start()
    assert await asyncio.wait_for(process.wait(), 30) == 3
    log = (workers.folder / "worker0.log").read_text()
    assert "Message queue 'nowhere' does not exist" in log
    assert "Traceback" not in log

"""Queues of tasks, limits, workers, batches and errors from the command line."""

from __future__ import annotations

import asyncio
import json
import threading
import zipfile
from functools import partial
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest
from manual_worker import ManualWorker, submit_job
from shell import Captured, Shell

from holdfast.engine import jobs
from holdfast.engine.connection import Connection
from holdfast.settings import Secret


@pytest.fixture
def shell(url: Secret, capsys: Captured) -> Shell:
    return Shell(url, capsys)


def test_one_name_can_have_tasks_and_messages(shell: Shell) -> None:
    shell("submit", "t", "--queue", "Post")
    shell("queue", "create", "post")
    shell("msg", "send", "post", "1")
    rows = [line.split("\t") for line in shell("queue", "list").splitlines()]
    assert [row[:4] for row in rows] == [
        ["Post", "tasks", "active, no worker", "1"],
        ["post", "messages", "active", "1"],
    ]
    assert [row["kind"] for row in shell.json("queue", "list", "--kind", "messages")] == ["messages"]
    shell("queue", "create", "Post2")
    shell("submit", "t", "--queue", "Post2")
    both = shell.json("queue", "show", "Post2")
    assert [(row["kind"], row.get("ready"), row.get("total")) for row in both] == [
        ("tasks", 1, None),
        ("messages", None, 0),
    ]
    assert "Message queue 'nobody' does not exist" in shell("queue", "show", "nobody", code=3)


def test_pause_stores_the_reason_and_resume_ends_it(shell: Shell) -> None:
    shell("submit", "t", "--queue", "q")
    assert (
        shell("queue", "pause", "q", "--reason", "storm") == "Queue q is paused: 1 ready, 0 still running.\n"
    )
    assert shell.query(lambda c: ManualWorker(c).claim_tasks(1)) == []
    [shown] = shell.json("queue", "show", "q")
    assert shown["paused_reason"] == "storm"
    assert ": storm" in shell("queue", "list")
    assert shell("queue", "desired-workers", "q") == "0\n"
    assert "paused for 1h" in shell("queue", "pause", "q", "--duration", "1h")
    assert "resumes in 60m" in shell("queue", "list")
    assert shell("queue", "resume", "q") == "Queue q is resumed.\n"
    assert shell("queue", "resume", "q") == "Queue q was not paused.\n"
    assert shell("queue", "desired-workers", "q", "--per-worker", "1") == "1\n"
    assert shell("queue", "desired-workers", "nobody") == "0\n"
    shell("queue", "create", "letters")
    assert "is a message queue" in shell("queue", "pause", "letters", code=5)


def test_a_count_above_ten_thousand_is_marked_as_an_estimate(shell: Shell, url: Secret) -> None:
    async def submit_many() -> None:
        connection = await asyncpg.connect(url.reveal())
        await jobs.submit_many(connection, [{"type": "t", "queue": "full"} for _ in range(12_000)])
        await connection.close()

    asyncio.run(submit_many())
    row = next(line.split("\t") for line in shell("queue", "list").splitlines() if line.startswith("full\t"))
    assert "~12k" in row
    rows = [json.loads(line) for line in shell("queue", "list", "--json").splitlines()]
    [listed] = [each for each in rows if each["queue"] == "full"]
    assert listed["ready_exact"] is False
    assert listed["ready"] == pytest.approx(12_000, rel=0.2)


def test_unknown_queue_is_refused_with_the_most_similar_name(shell: Shell) -> None:
    shell("submit", "t", "--queue", "mails")
    for command in ("pause", "resume", "drain", "limit"):
        options = ["--max-running", "2"] if command == "limit" else []
        refusal = shell("queue", command, "mial", *options, code=3)
        assert "Queue 'mial' does not exist; did you mean 'mails'?" in refusal
    assert [row["queue"] for row in shell.json("queue", "list")] == ["mails"]
    assert "is paused" in shell("queue", "pause", "later", "--new")


def test_drain_waits_for_running_tasks(shell: Shell, url: Secret) -> None:
    shell("submit", "t", "--queue", "q")
    shell("submit", "t", "--queue", "q")
    task = shell.query(lambda c: ManualWorker(c).claim_one_task())
    assert "1 task of queue q still running" in shell("queue", "drain", "q", "--wait-timeout", "50ms", code=1)
    [shown] = shell.json("queue", "show", "q")
    assert shown["paused_reason"] == "draining"

    def finish() -> None:
        async def finish_running_task(connection: Connection) -> None:
            await ManualWorker(connection).finish_task(task)

        shell.query(finish_running_task)

    finishing = threading.Timer(0.3, finish)
    finishing.start()
    [result] = shell.json("queue", "drain", "q", "--wait-timeout", "60s")
    finishing.join()
    assert result == {"queue": "q", "running": 0, "ready": 1}


def test_limits_are_set_listed_and_deleted(shell: Shell) -> None:
    assert shell("queue", "limit", "q", "--max-running", "2", "--new").split("\t")[:5] == [
        "queue:q",
        "q",
        "-",
        "no",
        "0/2",
    ]
    hosts = ("limit", "set", "hosts", "--type", "fetch", "--per-key", "--rate", "120/m", "--burst", "4")
    assert "Task 'fetch' does not exist" in shell(*hosts, code=3)
    shell(*hosts, "--new")
    shell(*hosts)  # a change of a limit keeps its names
    limits = {row["name"]: row for row in shell.json("limit", "list")}
    assert (limits["hosts"]["rate"], limits["hosts"]["burst"], limits["hosts"]["per_key"]) == (2, 4, True)
    for _ in range(3):
        shell("submit", "t", "--queue", "q")
    assert len(shell.query(lambda c: ManualWorker(c).claim_tasks(9))) == 2
    assert "queue:q\tq\t-\tno\t2/2\t-\tfull" in shell("limit", "list")
    assert "Queue 'qq' does not exist" in shell("limit", "set", "x", "--queue", "qq", "--rate", "1", code=3)
    assert "--yes" in shell("limit", "delete", "hosts", code=5)
    assert shell("limit", "delete", "hosts", "--yes") == "Limit hosts is deleted.\n"
    assert shell("queue", "limit", "q", "--remove", "--yes") == "Limit queue:q is deleted.\n"
    assert shell("limit", "list") == ""
    assert "Limit 'hosts' does not exist" in shell("limit", "delete", "hosts", "--yes", code=3)
    assert "needs max_running or rate" in shell("limit", "set", "x", code=2)
    assert "not a rate" in shell("limit", "set", "x", "--rate", "often", code=2)


def test_limit_of_each_key_is_not_shown_as_a_sum_over_its_maximum(shell: Shell) -> None:
    shell("limit", "set", "hosts", "--type", "fetch", "--per-key", "--max-running", "3", "--new")
    for key in ("a", "b"):
        for _ in range(3):
            shell.query(partial(jobs.submit, job={"type": "fetch", "queue": "q", "limit_key": key}))
    assert len(shell.query(lambda c: ManualWorker(c).claim_tasks(9))) == 6
    assert "\t6 (at most 3 per key)\t-\topen" in shell("limit", "list")


def test_workers_are_listed_shown_drained_and_stopped(shell: Shell) -> None:
    shell("submit", "t", "--queue", "q")

    async def start_two_workers(connection: Connection) -> None:
        await ManualWorker(connection, "ann-1").claim_tasks(1)
        await ManualWorker(connection, "bob-1").claim_tasks(1)
        about = {"version": "1.2", "slots": 8, "loop_lag_ms": 4.2, "rss": 123_000_000}
        await connection.fetchval("select holdfast.heartbeat_worker('ann-1', $1)", json.dumps(about))

    shell.query(start_two_workers)
    rows = [line.split("\t") for line in shell("workers", "list").splitlines()]
    assert rows[0][:8] == ["ann-1", "● live", "1", "8", "q", "1.2", "4 ms", "123 MB"]
    [shown] = shell.json("workers", "show", "ann")
    assert (shown["name"], len(shown["tasks"])) == ("ann-1", 1)
    assert "attempt" not in shell("workers", "show", "bob")
    assert "Worker 'carl' does not exist" in shell("workers", "show", "carl", code=3)
    assert "More than one worker name" in shell("workers", "show", "", code=4)
    assert "--yes" in shell("workers", "drain", "ann-1", code=5)
    assert "1 running task" in shell("workers", "drain", "ann-1", "--dry-run")
    shell("workers", "drain", "ann-1", "--yes")
    shell("workers", "stop", "bob-1", "--yes")
    states = {row["name"]: (row["state"], row["command"]) for row in shell.json("workers", "list")}
    assert states == {"ann-1": ("draining", "drain"), "bob-1": ("draining", "stop")}
    shell.query(lambda c: c.execute("select holdfast.mark_worker_stopped('bob-1')"))
    assert "bob-1 is stopped: there is no process" in shell("workers", "stop", "bob-1", "--yes", code=4)


def test_batch_is_listed_watched_and_cancelled(shell: Shell) -> None:
    batch = str(shell.query(lambda c: jobs.open_batch(c, "export")))
    for _ in range(3):
        shell("submit", "t", "--queue", "q", "--batch", batch)

    async def reject_one_task(connection: Connection) -> None:
        manual_worker = ManualWorker(connection)
        await manual_worker.finish_task(await manual_worker.claim_one_task(), "reject", {"message": "x"})

    shell.query(reject_one_task)
    assert [row["id"] for row in shell.json("batch", "list")] == [batch]
    assert shell("batch", "list").split("\t")[:6] == [batch, "open", "export", "1", "3", "1"]
    assert shell.json("batch", "list", "--owner", "nobody") == []
    [shown] = shell.json("batch", "show", batch)
    assert "state" not in shown
    assert (shown["status"], shown["total"], shown["ended"], shown["failed"]) == ("open", 3, 1, 1)
    assert "has not ended after" in shell("batch", "watch", batch, "--wait-timeout", "10ms", code=1)
    assert "This cancels 2 jobs" in shell("batch", "cancel", batch, "--dry-run")
    assert shell("batch", "cancel", batch, "--yes") == "Cancelled 2 jobs.\n"
    shell.query(lambda c: jobs.close_batch(c, UUID(batch)))
    assert "3 of 3 jobs ended, 1 failed" in shell.run_for_outputs("batch", "watch", batch, code=1)[0]
    assert "does not exist" in shell("batch", "show", str(UUID(int=5)), code=3)
    assert "is not a batch id" in shell("batch", "show", "x", code=2)


def create_failed_jobs(shell: Shell, count: int, message: str = "it broke") -> None:
    """Create jobs that failed with the same cause and are not retried."""

    async def reject_new_jobs(connection: Connection) -> None:
        manual_worker = ManualWorker(connection)
        body = {"type": "ValueError", "message": message, "traceback": "Traceback\n  File x\nValueError",
                "fingerprint": "ValueError in render"}  # fmt: skip
        for _ in range(count):
            await submit_job(connection)
            await manual_worker.finish_task(await manual_worker.claim_one_task(), "reject", body)

    shell.query(reject_new_jobs)


def test_errors_are_grouped_retried_and_ignored(shell: Shell) -> None:
    create_failed_jobs(shell, 12)
    [group] = shell.json("errors", "list")
    assert (group["attempts"], group["jobs"], group["type"]) == (12, 12, "ValueError")
    cells = shell("errors", "list").split("\t")
    assert cells[1:3] == ["12", "12"]
    assert "ValueError: it broke" in cells
    assert "File x" in shell("errors", "show", group["cause"][:8])
    assert len(shell.json("errors", "show", group["cause"], "-n", "2")[0]["samples"]) == 2
    assert "12 jobs" in shell("errors", "retry", group["cause"], "--dry-run")
    [bulk] = shell.json("errors", "retry", group["cause"], "--yes", "--reason", "fixed")
    assert (bulk["total"], bulk["verb"]) == (12, "retry")
    shell("bulk", "pause", bulk["id"])
    assert shell.json("bulk", "show", bulk["id"])[0]["status"] == "paused"
    shell("bulk", "resume", bulk["id"])
    shell("bulk", "stop", bulk["id"])
    assert "Cannot pause" in shell("bulk", "pause", bulk["id"], code=4)
    assert "does not exist" in shell("errors", "show", "nothing like it", code=3)
    shell("errors", "ignore", group["cause"], "--duration", "1h", "--reason", "known")
    assert shell.json("errors", "list") == []
    assert len(shell.json("errors", "list", "--ignored")) == 1
    shell("errors", "ignore", group["cause"], "--clear")
    assert len(shell.json("errors", "list")) == 1


def test_bulk_retry_stops_if_the_first_batch_fails_again(shell: Shell) -> None:
    create_failed_jobs(shell, 15)
    [group] = shell.json("errors", "list")
    [bulk] = shell.json("errors", "retry", group["cause"], "--yes")
    stop = threading.Event()

    def keep_failing() -> None:
        async def reject_retried_tasks(connection: Connection) -> None:
            manual_worker = ManualWorker(connection)
            while not stop.is_set():
                for task in await manual_worker.claim_tasks(10):
                    await manual_worker.finish_task(
                        task, "reject", {"type": "ValueError", "message": "again"}
                    )
                await asyncio.sleep(0.05)

        shell.query(reject_retried_tasks)

    worker = threading.Thread(target=keep_failing)
    worker.start()
    try:
        [result] = shell.json("bulk", "watch", bulk["id"], code=1)
    finally:
        stop.set()
        worker.join()
    assert (result["status"], result["done"]) == ("stopped", 10)
    assert result["stop_reason"]


def test_worker_receives_its_command(shell: Shell) -> None:
    shell.query(lambda c: ManualWorker(c, "ann").claim_tasks(1))
    shell("workers", "stop", "ann", "--yes")

    async def read_command(connection: Connection) -> object:
        return await connection.fetchval("select holdfast.heartbeat_worker('ann')")

    assert shell.query(read_command) == "stop"


def test_batch_zip_contains_all_files(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    batch = str(shell.query(lambda c: jobs.open_batch(c, "export")))
    for n in range(3):
        job_id = shell("submit", "t", "-q", "q", "--batch", batch).strip()
        (tmp_path / "page.txt").write_text(f"page {n}")
        shell("file", "put", "page.txt", "--job", job_id)
    assert "Saved 3 files" in shell("batch", "zip", batch)
    with zipfile.ZipFile(f"{batch}.zip") as archive:
        names = archive.namelist()
        assert names[-1] == "manifest.json"
        assert {archive.read(name).decode() for name in names[:-1]} == {"page 0", "page 1", "page 2"}
    assert "already exists" in shell("batch", "zip", batch, code=4)
    files = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    next(path for path in files if path.read_bytes() == b"page 1").unlink()
    [result] = shell.json("batch", "zip", batch, "--force", code=1)
    assert (len(result["files"]), len(result["failures"])) == (2, 1)
    assert not list(tmp_path.glob("*.part"))


def test_untrusted_text_is_printed_without_control_characters(shell: Shell) -> None:
    evil = "\x1b]0;owned\x07\x9b31m\u202e[red]x[/red]"
    shell.json("submit", "t", "-q", "q", f"a={evil}", "--owner", evil, "--label", f"l={evil}")
    shell("queue", "pause", "q", "--reason", evil)

    async def fail(connection: Connection) -> None:
        await connection.execute("select holdfast.resume_queue('q')")
        manual_worker = ManualWorker(connection, "w\u202e[red]w[/red]")
        body = {"type": f"E{evil}", "message": evil, "traceback": evil, "fingerprint": f"E {evil}"}
        await manual_worker.finish_task(await manual_worker.claim_one_task(), "reject", body)

    [row] = shell.json("job", "list")
    output = shell("queue", "list") + shell("job", "why", row["id"])
    shell.query(fail)
    commands = ["job list", f"job show {row['id']}", f"job why {row['id']}", "errors list", "workers list",
            "workers show w", "top --once", "queue show q"]  # fmt: skip
    for words in commands:
        output += shell(*words.split())
    assert "[red]x[/red]" in output
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(output)

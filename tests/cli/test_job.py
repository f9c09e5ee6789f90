"""`holdfast submit` and `holdfast job` on a real database. The tests claim and finish the tasks."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from manual_worker import ManualWorker
from shell import Captured, Shell

from holdfast.engine import audit, job_detail, jobs
from holdfast.engine.connection import Connection
from holdfast.engine.leases import LeasedTask, OutcomeKind
from holdfast.formatting import shorten_id
from holdfast.settings import Secret


@pytest.fixture
def shell(url: Secret, capsys: Captured) -> Shell:
    return Shell(url, capsys)


def submit_job(shell: Shell, *words: str) -> str:
    """Submit a job, to the queue `default` unless the words name one, and return its id."""
    queue = [] if {"-q", "--queue"} & set(words) else ["-q", "default"]
    return shell("submit", *words, *queue).strip()


def run_task(
    shell: Shell, kind: OutcomeKind | None = "succeed", body: object = None, queue: str = "default"
) -> LeasedTask:
    """Claim one task, and finish it if an outcome is given."""

    async def claim_and_finish(connection: Connection) -> LeasedTask:
        manual_worker = ManualWorker(connection, "hand", [queue])
        task = await manual_worker.claim_one_task()
        if kind is not None:
            await manual_worker.finish_task(task, kind, body)
        return task

    return shell.query(claim_and_finish)


def fail_task(shell: Shell, message: str = "it broke", **error: Any) -> None:
    body = {"type": "ValueError", "message": message, "traceback": "Traceback\n  ValueError", **error}
    run_task(shell, "reject", body)


def test_used_key_returns_the_existing_job_or_fails(shell: Shell) -> None:
    first = submit_job(shell, "shoot", "--key", "k")
    assert submit_job(shell, "shoot", "--key", "k") == first
    output = shell("submit", "shoot", "-q", "default", "--key", "k", "--on-conflict", "fail", code=4)
    assert first in output
    fresh = submit_job(shell, "shoot", "--unique-key", "u", "--on-conflict", "fail")
    assert fresh != first
    assert "needs --key" in shell("submit", "shoot", "-q", "default", "--on-conflict", "fail", code=2)


def test_submit_prints_the_id_and_accepts_pairs_json_and_files(shell: Shell, tmp_path: Path) -> None:
    first = submit_job(
        shell, "shoot", "url=https://e.example", "width:=800", "--queue", "browser", "--priority", "5"
    )
    [shown] = shell.json("job", "show", first)
    assert shown["params"] == {"url": "https://e.example", "width": 800}
    assert (shown["type"], shown["tasks"][0]["queue"], shown["status"]) == ("shoot", "browser", "queued")
    (tmp_path / "args.json").write_text('{"a": [1, 2]}')
    for words, args in (
        (['{"a": null}'], {"a": None}),
        ([f"@{tmp_path / 'args.json'}"], {"a": [1, 2]}),
        ([], {}),
    ):
        [shown] = shell.json("job", "show", submit_job(shell, "t", *words))
        assert (shown["params"] or {}) == args


def test_unknown_task_is_refused(shell: Shell) -> None:
    assert "No worker has registered task 'shot'" in shell("submit", "shot", code=3)
    submit_job(shell, "shoot", "-q", "browser")
    assert "Known tasks: shoot." in shell("submit", "shot", code=3)
    [again] = shell.json("submit", "shoot")
    assert shell.json("job", "show", again["id"])[0]["tasks"][0]["queue"] == "browser"
    submit_job(shell, "shoot", "-q", "other")
    assert "in more than one queue: browser, other" in shell("submit", "shoot", code=3)


def test_same_key_returns_the_same_job(shell: Shell) -> None:
    [first] = shell.json("submit", "t", "-q", "default", "--key", "k", "a=1")
    [second] = shell.json("submit", "t", "-q", "default", "--key", "k", "a=1")
    assert (first["created"], second["created"], second["id"]) == (True, False, first["id"])
    assert "key" in shell("submit", "t", "--key", "k", "a=2", code=4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["t", "[1]"], "JSON object"),
        (["t", "{"], "not valid JSON"),
        (["t", "a:=nope"], "not valid JSON"),
        (["t", "--delay", "1s", "--at", "2030-01-01"], "not both"),
        (["t", "--priority", "1000"], "range"),
        (["", "a=1"], "type"),
        (["x" * 300], "type"),
        (["t", "--batch", "nope"], "batch"),
        (["t", 'a:="\\u0000"'], "NUL"),
    ],
)
def test_invalid_arguments_are_named(shell: Shell, words: list[str], message: str) -> None:
    assert message in shell("submit", "-q", "default", *words, code=2)


def test_wait_prints_the_result(shell: Shell) -> None:
    job_id = submit_job(shell, "t", "--key", "k")
    run_task(shell, body={"n": 1})
    assert shell("submit", "t", "--key", "k", "--wait") == '{"n":1}\n'
    [job] = shell.json("submit", "t", "--key", "k", "--wait")
    assert (job["id"], job["output"]) == (job_id, {"n": 1})
    assert shell("submit", "t", "--key", "k", "--watch").splitlines()[-1] == '{"n":1}'
    submit_job(shell, "t", "--key", "bad")
    fail_task(shell)
    output, _ = shell.run_for_outputs("submit", "t", "--key", "bad", "--wait", code=1)
    assert "✕ failed: ValueError: it broke" in output
    assert "has not ended after" in shell("submit", "t", "--wait", "--wait-timeout", "50ms", code=1)


def test_show_prints_failed_attempts_without_control_characters(shell: Shell) -> None:
    job_id = submit_job(shell, "t", "a=\x1b[31mred")
    fail_task(shell, "\x1b]0;title\x07 [bold]tag[/bold]", traceback="line 1\n\x1b[2Jline 2")
    output = shell("job", "show", job_id[:12])
    assert "\x1b" not in output
    assert "\x07" not in output
    assert "[bold]tag[/bold]" in output
    assert "line 2" in output
    assert "attempt 1 rejected" in output
    [shown] = shell.json("job", "show", job_id)
    assert shown["tasks"][0]["attempts"][0]["error_type"] == "ValueError"


def test_missing_job_is_not_found(shell: Shell) -> None:
    for verb in ("show", "watch", "why", "logs"):
        assert "does not exist" in shell("job", verb, str(UUID(int=7)), code=3)
    assert "No job id starts or ends with abcd" in shell("job", "show", "abcd", code=3)
    assert "is not a job id" in shell("job", "show", "zz", code=2)
    first, _ = submit_job(shell, "t"), submit_job(shell, "t")
    error = shell("job", "show", first[:8], code=4)
    assert "More than one job matches" in error
    assert "Give the last digits" in error


def test_every_printed_form_of_an_id_is_accepted(shell: Shell) -> None:
    first, _ = submit_job(shell, "t"), submit_job(shell, "t")
    short = shorten_id(first)
    assert len(short) == 14
    for text in (first, first.upper(), short, short.replace("…", "..."), first[-12:], f"…{first[-12:]}"):
        assert shell.json("job", "show", text)[0]["id"] == first, text
    for text in ("…", "a…b…c", "…1"):
        assert "is not a job id" in shell("job", "show", text, code=2)


def test_why_explains_each_reason_in_a_sentence(shell: Shell) -> None:
    job_id = submit_job(shell, "t", "--queue", "lonely")
    [row] = shell.json("job", "why", job_id)
    assert (row["reason"], row["status"]) == ("no_worker", "ready")
    shell("queue", "pause", "lonely", "--reason", "429 storm")
    reasons = {row["reason"]: row["why"] for row in shell.json("job", "why", job_id)}
    assert "paused" in reasons["paused"]
    assert reasons["paused"].endswith(": 429 storm.")
    shell("queue", "resume", "lonely")
    run_task(shell, None, queue="lonely")
    assert "Running for" in shell("job", "why", job_id)
    later = submit_job(shell, "t", "--delay", "1h")
    assert "starts in 60m" in shell("job", "why", later)
    first = submit_job(shell, "one", "--queue", "lonely")
    shell("queue", "limit", "lonely", "--max-running", "1")
    assert "Limit queue:lonely is full: 1 of 1 in use, held by" in shell("job", "why", first)


def test_cancel_needs_confirmation_and_is_recorded(shell: Shell) -> None:
    job_id = submit_job(shell, "t")
    assert "--yes" in shell("job", "cancel", job_id, code=5)
    assert "Nothing was changed" in shell("job", "cancel", job_id, "--dry-run")
    [result] = shell.json("job", "cancel", job_id, "--yes", "--reason", "enough")
    assert result == {"id": job_id, "cancelled": True, "status": "cancelled"}
    [shown] = shell.json("job", "show", job_id)
    assert shown["error"]["message"] == "enough"
    [entry] = shell.query(audit.list_audit_entries)
    assert (entry.action, entry.target, entry.detail) == ("job.cancel", job_id, {"reason": "enough"})
    assert "@" in entry.actor
    done = submit_job(shell, "t")
    run_task(shell)
    shell("job", "cancel", done, "--yes", code=4)
    assert "Give job ids or --search" in shell("job", "cancel", code=2)


def test_retry_keeps_the_job_and_rerun_submits_a_new_one(shell: Shell) -> None:
    job_id = submit_job(shell, "t", "n:=1", "--label", "team=media", "--owner", "ann")
    fail_task(shell)
    [result] = shell.json("job", "retry", job_id)
    assert result == {"id": job_id, "restarted": 1}
    run_task(shell, body="well")
    [shown] = shell.json("job", "show", job_id)
    assert (shown["status"], shown["output"]) == ("succeeded", "well")
    [again] = shell.json("job", "rerun", job_id, "n:=2", "extra=x")
    [new] = shell.json("job", "show", again["id"])
    assert (new["params"], new["owner"]) == ({"n": 2, "extra": "x"}, "ann")
    assert new["labels"] == {"team": "media"}
    assert shell.query(lambda c: job_detail.get_rerun_links(c, UUID(again["id"])))["of"] == job_id
    assert shell.json("job", "show", job_id)[0]["params"] == {"n": 1}
    printed = json.loads(shell("job", "rerun", job_id, "--print"))
    assert printed["args"] == {"n": 1}
    shell("job", "retry", shell("job", "rerun", job_id).strip(), code=4)
    fresh = submit_job(shell, "t")
    assert "can be retried" in shell("job", "retry", fresh, code=4)


def test_graph_is_retried_from_one_task_and_rerun_with_changes(shell: Shell) -> None:
    async def graph(connection: Connection) -> UUID:
        from manual_worker import submit_graph as make  # noqa: PLC0415

        submitted = await make(
            connection,
            {"name": "a", "args": {"n": 1}},
            {"name": "b", "args": {"n": 2}, "after": ["a"]},
            type="pair",
        )
        manual_worker = ManualWorker(connection)
        for _ in range(2):
            await manual_worker.finish_task(await manual_worker.claim_one_task(), "succeed", "x")
        return submitted.id

    job_id = str(shell.query(graph))
    [result] = shell.json("job", "retry", job_id, "--from", "b")
    assert result["restarted"] == 1
    assert "from names a task" in shell("job", "retry", job_id, "--from", "c", code=2)
    assert "Name one with --task: a, b" in shell("job", "rerun", job_id, "n:=5", code=5)
    [again] = shell.json("job", "rerun", job_id, "n:=5", "--task", "b")
    [new] = shell.json("job", "show", again["id"])
    assert [task["name"] for task in new["tasks"]] == ["a", "b"]


def test_list_uses_the_search_of_the_dashboard(shell: Shell) -> None:
    ids = [
        submit_job(shell, "shoot" if n % 2 else "caption", f"n:={n}", "--queue", "default") for n in range(5)
    ]
    fail_task(shell)
    rows = shell.json("job", "list")
    assert [row["id"] for row in rows] == ids[::-1]
    assert [row["id"] for row in shell.json("job", "list", "task:shoot")] == [ids[3], ids[1]]
    assert [row["id"] for row in shell.json("job", "list", "args.n:4")] == [ids[4]]
    assert shell("job", "list", "state:failed").split("\t")[:2] == [ids[0], "✕ failed"]
    assert shell("job", "list", "task:shoot", "--count") == "2\n"
    assert [r["id"] for r in shell.json("job", "list", "-n", "2", "--before", ids[3])] == [ids[2], ids[1]]
    assert "nonsense" in shell("job", "list", "nonsense:5", code=2)
    assert shell("job", "list", "task:nobody") == ""


def test_export_writes_all_matching_jobs(shell: Shell, tmp_path: Path) -> None:
    for n in range(7):
        submit_job(shell, "t", f"n:={n}")
    lines = shell("job", "export", "task:t").splitlines()
    assert [json.loads(line)["params"]["n"] for line in lines] == [6, 5, 4, 3, 2, 1, 0]
    file = tmp_path / "jobs.csv"
    assert shell("job", "export", "--format", "csv", "-o", str(file)) == f"Wrote 7 jobs to {file}.\n"
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    assert {row["status"] for row in rows} == {"queued"}
    assert len(shell("job", "export", "-n", "3").splitlines()) == 3


def test_logs_print_lines_with_task_and_attempt(shell: Shell) -> None:
    job_id = submit_job(shell, "t")

    async def write_lines(connection: Connection) -> None:
        manual_worker = ManualWorker(connection, "hand", ["default"])
        task = await manual_worker.claim_one_task()
        batch = [{"id": task.id, "attempt": task.attempt, "nonce": task.nonce, "lines": [
            {"seq": n, "at": "2026-01-01T00:00:00Z", "level": level, "message": f"line {n}\x1b[1m",
             "fields": {"n": n}}
            for n, level in enumerate(("info", "error"), 1)]}]  # fmt: skip
        await connection.fetchval("select holdfast.write_logs($1)", json.dumps(batch, default=str))
        await manual_worker.finish_task(task)

    shell.query(write_lines)
    output = shell("job", "logs", job_id, "--follow")
    assert "info    t#1 line 1 [1m n=1\n" in output
    assert [line["n"] for line in (row["fields"] for row in shell.json("job", "logs", job_id))] == [1, 2]
    assert len(shell.json("job", "logs", job_id, "--level", "error")) == 1
    assert "no task 'x'" in shell("job", "logs", job_id, "--task", "x", code=3)


def test_search_starts_a_bulk_action(shell: Shell) -> None:
    ids = [submit_job(shell, "t", f"n:={n}") for n in range(3)]
    for _ in range(3):
        fail_task(shell)
    assert "3 jobs" in shell("job", "retry", "--search", "state:failed", "--dry-run")
    [bulk] = shell.json(
        "job", "retry", "--search", "state:failed", "--yes", "--all-at-once", "--reason", "fixed"
    )
    assert (bulk["total"], bulk["reason"]) == (3, "fixed")
    assert [row["id"] for row in shell.json("bulk", "list")] == [bulk["id"]]
    shell("bulk", "watch", bulk["id"])
    assert {row["status"] for row in shell.json("job", "list")} == {"queued"}
    assert shell.json("bulk", "undo", bulk["id"], "--yes")[0]["undone"] == 3
    assert {row["state"] for row in shell.json("job", "list")} == {"cancelled"}
    assert len(ids) == 3
    assert "No job that matches" in shell("job", "cancel", "--search", "task:nobody", "--yes", code=3)


def test_job_with_5000_tasks_is_shortened(shell: Shell) -> None:
    async def graph(connection: Connection) -> UUID:
        tasks = [{"name": f"n{n}", "type": "t"} for n in range(5000)]
        return (await jobs.submit(connection, {"type": "wide", "queue": "q", "tasks": tasks})).id

    job_id = str(shell.query(graph))
    output = shell("job", "show", job_id).splitlines()
    assert output[-1] == "  and 4,800 more tasks; --json prints all of them"
    assert len(shell.json("job", "show", job_id)[0]["tasks"]) == 5000
    assert len(shell.json("job", "why", job_id)) == 20
    shell("job", "cancel", job_id, "--yes")

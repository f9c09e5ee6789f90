"""The list of mutants: deliberate mistakes in the sources, each with the tests that must catch it.

`campaign/mutants.py` plants them. A change whose text no longer occurs in the sources is an error too
(tests/campaign/test_mutants.py), so the list stays true.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FUNCTIONS_DIR = "src/holdfast/engine/functions"


@dataclass(frozen=True)
class Mutant:
    """Replace `before` in `file` by `after`. `caught_by` names test files, or fault runs (without a slash)."""

    name: str
    file: str
    before: str
    after: str
    caught_by: tuple[str, ...]


def mutate_sql(name: str, file: str, before: str, after: str, *caught_by: str) -> Mutant:
    """Build a mutant of an SQL function file, such as `leases/claim`."""
    return Mutant(name, f"{FUNCTIONS_DIR}/{file}.sql", before, after, caught_by)


def mutate_python(name: str, file: str, before: str, after: str, *caught_by: str) -> Mutant:
    """Build a mutant of a Python module of the package, such as `worker/fetcher`."""
    return Mutant(name, f"src/holdfast/{file}.py", before, after, caught_by)


LEASE_TESTS = "tests/engine/test_leases.py"
FINISH_TESTS = "tests/engine/test_finish.py"
DEPENDENCY_TESTS = "tests/engine/test_dependencies.py"
ACCESS_TESTS = "tests/engine/test_access.py"
PIPELINING_TESTS = "tests/worker/test_fetcher_pipelining.py"
HEARTBEAT_PROCESS_TESTS = "tests/worker/test_heartbeat_process.py"

MUTANTS = [
    mutate_sql("finish-without-nonce", "leases/finish_sets",
        "where t.id = g.id and t.attempt = g.attempt and t.nonce = g.nonce and t.status || '' = 'running'\n      and t.job_id is null",
        "where t.id = g.id and t.attempt = g.attempt and t.status || '' = 'running' and t.job_id is null", LEASE_TESTS, FINISH_TESTS),
    mutate_sql("finish-without-lease", "leases/finish_sets",
        "where t.id = g.id and t.attempt = g.attempt and t.nonce = g.nonce and t.status || '' = 'running'\n      and t.job_id is null",
        "where t.id = g.id and t.job_id is null", "zombies", LEASE_TESTS),
    mutate_sql("failure-without-lease", "leases/finish_sets",
        "where t.id = g.id and t.attempt = g.attempt and t.nonce = g.nonce and t.status || '' = 'running'\n      and (t.job_id is not null)",
        "where t.id = g.id and (t.job_id is not null)", LEASE_TESTS, FINISH_TESTS),
    mutate_sql("outcome-without-lease", "leases/finish",
        "where t.id = p_id and t.attempt = p_attempt\n    and t.nonce = p_nonce for update;", "where t.id = p_id for update;", LEASE_TESTS, FINISH_TESTS),
    mutate_sql("repeat-is-news", "leases/finish", "return case p_status when 'succeeded' then p_outcome = 'succeed'",
        "return case p_status when 'succeeded' then false", LEASE_TESTS, FINISH_TESTS),
    mutate_sql("beat-without-lease", "leases/leases",
        "where t.id = g.id and t.attempt = g.attempt and t.nonce = g.nonce and t.status || '' = 'running'\n      and l.id",
        "where t.id = g.id and t.status || '' = 'running'\n      and l.id", LEASE_TESTS),
    mutate_sql("fence-without-nonce", "leases/leases",
        "where t.id = p_id and t.attempt = p_attempt and t.nonce = p_nonce and t.status || '' = 'running'\n  for update;",
        "where t.id = p_id and t.attempt = p_attempt and t.status || '' = 'running'\n  for update;", LEASE_TESTS),
    mutate_sql("claim-without-lock", "leases/lease_tasks", "order by t.pos limit u.want\n      for update skip locked", "order by t.pos limit u.want",
        "mixed", "kills", "tests/engine/test_claim.py"),
    mutate_sql("claim-beyond-the-slots", "leases/lease_tasks", "order by t.pos limit u.want\n      for update skip locked\n    ) as f\n    limit p_max_tasks\n",
        "order by t.pos limit u.want + 1\n      for update skip locked\n    ) as f\n", "tests/engine/test_claim.py"),
    mutate_sql("attempt-reused", "leases/lease_tasks", "set status = 'running', attempt = t.attempt + 1, nonce", "set status = 'running', attempt = greatest(t.attempt, 1), nonce",
        "kills", "tests/engine/test_claim.py"),
    mutate_sql("lease-by-another-clock", "leases/lease_tasks", "lease_until = p_now + p.lease * interval '1 second'",
        "lease_until = p_now + (p.lease - 3) * interval '1 second'", "kills", "tests/engine/test_leases.py"),
    mutate_sql("reaper-without-second-look", "operations/tick",
        "where t.id = v_one.id and t.status || '' = 'running' and t.lease_until <= p_now for update skip locked;\n    continue when not found;\n    select * into v_end",
        "where t.id = v_one.id for update skip locked;\n    continue when not found;\n    select * into v_end", LEASE_TESTS, "tests/engine/test_storm.py", "mixed"),
    mutate_sql("crashes-not-counted", "leases/outcomes", "crashes = t.crashes + (p_outcome = 'crash')::int,", "crashes = t.crashes,", LEASE_TESTS, FINISH_TESTS, "tests/engine/test_model.py"),
    mutate_sql("release-is-charged", "leases/outcomes", "failures = t.failures + (p_outcome = 'fail')::int,",
        "failures = t.failures + (p_outcome in ('fail', 'release'))::int,", FINISH_TESTS, "tests/worker/test_processes.py"),
    mutate_sql("one-attempt-too-many", "leases/outcomes", "p_task.failures + 1 >= p_policy.max_attempts", "p_task.failures >= p_policy.max_attempts", FINISH_TESTS, "tests/engine/test_model.py"),
    mutate_sql("edge-satisfied-twice", "jobs/dependencies", "where e.parent_id = p.id and not e.satisfied",
        "where e.parent_id = p.id", DEPENDENCY_TESTS, "graphs"),
    mutate_sql("child-released-early", "jobs/dependencies", "case when c.pending_parents = d.n or d.fails then v.outcome end",
        "case when c.pending_parents >= d.n or d.fails then v.outcome end", "graphs", DEPENDENCY_TESTS),
    mutate_sql("job-counted-without-lock", "leases/finish", "perform from holdfast.jobs j where j.id = any (v_jobs) order by j.id for update;",
        "perform 1;", "graphs", DEPENDENCY_TESTS, "tests/engine/test_storm.py"),
    mutate_sql("limit-not-counted", "limits/counters", "v_count := least(v_count, coalesce(v_free[array_position(v_ids, v_counter_id)], 0));", "null;",
        "limits", "tests/engine/test_limits.py"),
    mutate_sql("limit-given-back-twice", "limits/counters", "set running = greatest(l.running - h.n, 0)", "set running = greatest(l.running - 2 * h.n, 0)",
        "limits", "tests/engine/test_limits.py"),
    mutate_sql("limit-never-given-back", "operations/tick", "perform holdfast.apply_task_end_effects(v_lanes, v_effects, p_now);",
        "perform holdfast.apply_task_end_effects(null, v_effects, p_now);",
        "limits", "tests/engine/test_limits.py"),
    mutate_sql("key-taken-by-everybody", "jobs/submit_keys", "  return v_existing.job_id;\nend $$;", "  return null;\nend $$;", "unique", "tests/engine/test_submit.py"),
    mutate_sql("key-with-another-body", "jobs/submit_keys", "if not p_active_only and v_existing.body_hash <> p_hash then", "if false then", "tests/engine/test_submit.py"),
    mutate_sql("callback-twice", "jobs/batches", "v_batch.callback is not null and v_batch.callback_job is null", "v_batch.callback is not null",
        DEPENDENCY_TESTS),
    mutate_sql("batch-ends-early", "jobs/retry", "if v_count > 0 and v_before.ended then", "if false then", DEPENDENCY_TESTS),
    mutate_sql("cancel-is-not-final", "jobs/cancel", "t.status || '' in ('waiting', 'scheduled', 'ready', 'running')\n    order by t.id for update",
        "t.status || '' in ('waiting', 'scheduled', 'ready')\n    order by t.id for update", "tests/engine/test_cancel.py", "cancels"),
    mutate_sql("cancel-of-a-stranger", "jobs/cancel", "if not holdfast.can_user_see_job(p_id, v_user) then", "if false then", ACCESS_TESTS, "tests/engine/test_cancel.py"),
    mutate_sql("everybody-may-execute", "access/grants", "execute pg_catalog.format('revoke all on %s %s from %s', v_object_type, v_objects, v_roles);", "null;",
        ACCESS_TESTS, "tests/engine/test_install_access.py"),
    mutate_python("outcome-lost-on-reconnect", "worker/fetcher", "self._outbox.put_outcomes_back(", "(lambda *_: None)(", "tests/worker/test_processes.py", "crashes", "cut"),
    mutate_python("asked-slots-are-free", "worker/fetcher", "len(self.running) - self.requested_slots, self._max_batch", "len(self.running), self._max_batch", PIPELINING_TESTS),
    mutate_python("stop-drops-an-answer", "worker/fetcher", "finally:  # start what was claimed, whatever happens",
        "except ZeroDivisionError:\n                pass\n            else:", PIPELINING_TESTS),
    mutate_python("stop-forgets-a-claim", "worker/runtime", "self._is_busy() or self._fetcher.requested_slots or", "self._is_busy() or", PIPELINING_TESTS),
    mutate_python("stop-keeps-unread-claims", "worker/runtime", "await self._fetcher.release_unreceived_tasks(connection)", "pass", PIPELINING_TESTS),
    mutate_python("only-connection-kept", "worker/fetcher", "reversed(range(MAX_CONSECUTIVE_ROUND_TRIPS))", "reversed(range(MAX_CONSECUTIVE_ROUND_TRIPS * 1000))", PIPELINING_TESTS),
    mutate_sql("quota-passed-by-alone", "jobs/submit_standalone", "return exists (select from holdfast.quotas)", "return false", "tests/engine/test_submit_standalone.py"),
    mutate_python("stopped-worker-is-renewed", "worker/heartbeat_process",
        "                if self._is_worker_stopped():\n                    await asyncio.sleep(HEARTBEAT_RETRY_INTERVAL_S)\n                    continue\n", "",
        "tests/worker/test_hard.py"),
    mutate_python("unrenewed-attempt-goes-on", "worker/heartbeat", "            if now >= attempt.lease_safe_until:\n", "            if False:\n",
        "tests/worker/test_heartbeat.py"),
    mutate_python("dead-heartbeat-is-not-replaced", "worker/heartbeat",
        '                telemetry.emit("worker.heartbeat_replaced", worker=self._worker)\n                self._start_process()\n', "",
        "tests/worker/test_heartbeat.py"),
    mutate_python("silent-heartbeat-is-kept", "worker/heartbeat", "        if self.link.must_be_replaced():\n", "        if False:\n",
        HEARTBEAT_PROCESS_TESTS),
    mutate_python("task-starts-without-heartbeat", "worker/fetcher", "not await self.heartbeat_link.wait_for_answer()", "self.heartbeat_link.is_unresponsive",
        HEARTBEAT_PROCESS_TESTS),
    mutate_python("frames-name-tasks-only", "worker/heartbeat_protocol",
        "    return LEASE_KEY_STRUCT.pack(lease.id.bytes, lease.nonce, lease.attempt)\n", "    return LEASE_KEY_STRUCT.pack(lease.id.bytes, 0, 0)\n",
        "tests/worker/test_heartbeat_leases.py"),
    mutate_python("processes-outlive-their-worker", "worker/heartbeat_process", "await end_process_groups(self._children)", "pass",
        HEARTBEAT_PROCESS_TESTS),
    mutate_python("worker-death-is-charged", "worker/lease_return", 'return _build_outcome(key, "lost", {"message": message, "suspect": True})',
        'return _build_outcome(key, "crash", {"message": message})', HEARTBEAT_PROCESS_TESTS, "tests/worker/test_heartbeat_leases.py"),
    mutate_python("lost-claim-released-once", "worker/lost_claims", "if nonce in released or now >=", "if True or now >=", "tests/worker/test_lost_responses.py"),
    mutate_sql("lost-claim-of-another-worker", "leases/leases", "where w.name = p_worker and t.status = 'running' and t.nonce = any (p_claim_nonces);",
        "where t.status = 'running' and t.nonce = any (p_claim_nonces);", "tests/worker/test_lost_responses.py"),
    mutate_python("lost-message-goes-on", "worker/messages/visibility",
        "loop.call_soon_threadsafe(runner.cancel, reason)", "pass", "tests/worker/test_consumers.py"),
    mutate_python("drop-does-not-wait-for-a-renewal", "worker/messages/renewal",
        "confirmed = [number for number in numbers if number not in self._in_flight]", "confirmed = list(numbers)",
        "tests/worker/test_message_renewal.py"),
    mutate_python("token-of-another-audience", "server/api/token_verification", "                audience=self._settings.jwt_audience,\n", "",
        "tests/api/test_tokens.py"),
    mutate_python("user-sees-internal-errors", "server/api/job_views",
        '        redacted = {"type": "Error", "message": HIDDEN_ERROR_MESSAGE}',
        '        redacted = {"type": error_type, "message": str(error.get("message") or "")}', "tests/api/test_files.py"),
    mutate_python("signature-not-checked", "storage/signed_links", "if not hmac.compare_digest(signature, self._compute_signature(payload)):", "if False:",
        "tests/api/test_files.py"),
    mutate_python("expired-link-works", "storage/signed_links", ">= grant.expires:", ">= grant.expires + 10**9:", "tests/api/test_files.py"),
    mutate_python("daily-export-limit-ignored", "systems/exports/submission", "if usage.operations + created > limits.exports_per_day:", "if False:",
        "tests/systems/test_export_limits.py"),
    mutate_python("export-file-of-another-user", "systems/request_context", "return file if file.owner == owner else None", "return file",
        "tests/systems/test_export_access.py"),
]  # fmt: skip

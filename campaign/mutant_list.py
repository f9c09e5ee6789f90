"""The mutants: known mistakes, each one small change of the sources, and the tests that must catch it.

`campaign/mutants.py` plants them. A change whose text no longer occurs in the sources is an error too
(tests/campaign/test_mutants.py), so the list stays true.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FUNCTIONS = "src/holdfast/engine/functions"


@dataclass(frozen=True)
class Mutant:
    """Replace `before` in `file` by `after`. `caught_by` names test files, or fault runs (without a slash)."""

    name: str
    file: str
    before: str
    after: str
    caught_by: tuple[str, ...]


def sql(name: str, file: str, before: str, after: str, *caught_by: str) -> Mutant:
    """A mutant of a function file, named by its folder and its name: `leases/claim`."""
    return Mutant(name, f"{FUNCTIONS}/{file}.sql", before, after, caught_by)


def python(name: str, file: str, before: str, after: str, *caught_by: str) -> Mutant:
    """A mutant of a Python module, named by its path below the package: `worker/fetcher`."""
    return Mutant(name, f"src/holdfast/{file}.py", before, after, caught_by)


LEASES = "tests/engine/test_leases.py"
FINISH = "tests/engine/test_finish.py"
DEPENDENCIES = "tests/engine/test_dependencies.py"
ACCESS = "tests/engine/test_access.py"
AHEAD = "tests/worker/test_fetcher_pipelining.py"

MUTANTS = [
    sql("finish-without-nonce", "leases/finish",
        "where t.id = g.id and t.attempt = g.attempt and t.nonce = g.nonce and t.status || '' = 'running'\n      and t.job_id is null",
        "where t.id = g.id and t.attempt = g.attempt and t.status || '' = 'running' and t.job_id is null", LEASES, FINISH),
    sql("finish-without-lease", "leases/finish",
        "where t.id = g.id and t.attempt = g.attempt and t.nonce = g.nonce and t.status || '' = 'running'\n      and t.job_id is null",
        "where t.id = g.id and t.job_id is null", "zombies", LEASES),
    sql("outcome-without-lease", "leases/finish",
        "where t.id = p_id and t.attempt = p_attempt\n    and t.nonce = p_nonce for update;", "where t.id = p_id for update;", LEASES, FINISH),
    sql("repeat-is-news", "leases/finish", "return case p_status when 'succeeded' then p_outcome = 'succeed'",
        "return case p_status when 'succeeded' then false", LEASES, FINISH),
    sql("beat-without-lease", "leases/leases",
        "where t.id = g.id and t.attempt = g.attempt and t.nonce = g.nonce and t.status || '' = 'running'\n      and l.id",
        "where t.id = g.id and t.status || '' = 'running'\n      and l.id", LEASES),
    sql("fence-without-nonce", "leases/leases",
        "where t.id = p_id and t.attempt = p_attempt and t.nonce = p_nonce and t.status || '' = 'running'\n  for update;",
        "where t.id = p_id and t.attempt = p_attempt and t.status || '' = 'running'\n  for update;", LEASES),
    sql("claim-without-lock", "leases/lease_tasks", "order by t.pos limit u.want\n      for update skip locked", "order by t.pos limit u.want",
        "mixed", "kills", "tests/engine/test_claim.py"),
    sql("claim-beyond-the-slots", "leases/lease_tasks", "order by t.pos limit u.want\n      for update skip locked\n    ) as f\n    limit p_max_tasks\n",
        "order by t.pos limit u.want + 1\n      for update skip locked\n    ) as f\n", "tests/engine/test_claim.py"),
    sql("attempt-reused", "leases/lease_tasks", "set status = 'running', attempt = t.attempt + 1, nonce", "set status = 'running', attempt = greatest(t.attempt, 1), nonce",
        "kills", "tests/engine/test_claim.py"),
    sql("lease-by-another-clock", "leases/lease_tasks", "lease_until = p_now + p.lease * interval '1 second'",
        "lease_until = p_now + (p.lease - 3) * interval '1 second'", "kills", "tests/engine/test_leases.py"),
    sql("reaper-without-second-look", "operations/tick",
        "where t.id = v_one.id and t.status || '' = 'running' and t.lease_until <= p_now for update skip locked;\n    continue when not found;\n    select * into v_end",
        "where t.id = v_one.id for update skip locked;\n    continue when not found;\n    select * into v_end", LEASES, "tests/engine/test_storm.py", "mixed"),
    sql("crashes-not-counted", "leases/outcomes", "crashes = t.crashes + (p_outcome = 'crash')::int,", "crashes = t.crashes,", LEASES, FINISH, "tests/engine/test_model.py"),
    sql("release-is-charged", "leases/outcomes", "failures = t.failures + (p_outcome = 'fail')::int,",
        "failures = t.failures + (p_outcome in ('fail', 'release'))::int,", FINISH, "tests/worker/test_processes.py"),
    sql("one-attempt-too-many", "leases/outcomes", "p_task.failures + 1 >= p_policy.max_attempts", "p_task.failures >= p_policy.max_attempts", FINISH, "tests/engine/test_model.py"),
    sql("edge-satisfied-twice", "jobs/dependencies", "where e.parent_id = any (p_parents) and not e.satisfied and p.id = e.parent_id",
        "where e.parent_id = any (p_parents) and p.id = e.parent_id", DEPENDENCIES, "graphs"),
    sql("child-released-early", "jobs/dependencies", "case when c.pending_parents = d.n or d.fails then v.outcome end",
        "case when c.pending_parents >= d.n or d.fails then v.outcome end", "graphs", DEPENDENCIES),
    sql("job-counted-without-lock", "leases/finish", "perform from holdfast.jobs j where j.id = any (v_jobs) order by j.id for update;",
        "perform 1;", "graphs", DEPENDENCIES, "tests/engine/test_storm.py"),
    sql("limit-not-counted", "limits/counters", "v_count := least(v_count, coalesce(v_free[array_position(v_ids, v_counter_id)], 0));", "null;",
        "limits", "tests/engine/test_limits.py"),
    sql("limit-given-back-twice", "limits/counters", "set running = greatest(l.running - h.n, 0)", "set running = greatest(l.running - 2 * h.n, 0)",
        "limits", "tests/engine/test_limits.py"),
    sql("limit-never-given-back", "operations/tick", "perform holdfast.apply_task_end_effects(v_lanes, v_effects, p_now);",
        "perform holdfast.apply_task_end_effects(null, v_effects, p_now);",
        "limits", "tests/engine/test_limits.py"),
    sql("key-taken-by-everybody", "jobs/submit_keys", "  return v_existing.job_id;\nend $$;", "  return null;\nend $$;", "unique", "tests/engine/test_submit.py"),
    sql("key-with-another-body", "jobs/submit_keys", "if not p_active_only and v_existing.body_hash <> p_hash then", "if false then", "tests/engine/test_submit.py"),
    sql("callback-twice", "jobs/batches", "v_batch.callback is not null and v_batch.callback_job is null", "v_batch.callback is not null",
        DEPENDENCIES),
    sql("batch-ends-early", "jobs/retry", "if v_count > 0 and v_before.ended then", "if false then", DEPENDENCIES),
    sql("cancel-is-not-final", "jobs/cancel", "t.status || '' in ('waiting', 'scheduled', 'ready', 'running')\n    order by t.id for update",
        "t.status || '' in ('waiting', 'scheduled', 'ready')\n    order by t.id for update", "tests/engine/test_cancel.py", "cancels"),
    sql("cancel-of-a-stranger", "jobs/cancel", "if not holdfast.can_user_see_job(p_id, v_user) then", "if false then", ACCESS, "tests/engine/test_cancel.py"),
    sql("everybody-may-execute", "access/grants", "execute pg_catalog.format('revoke all on %s %s from %s', v_object_type, v_objects, v_roles);", "null;",
        ACCESS, "tests/engine/test_install_access.py"),
    python("outcome-lost-on-reconnect", "worker/fetcher", "self._outbox.put_outcomes_back(", "(lambda *_: None)(", "tests/worker/test_processes.py", "crashes", "cut"),
    python("asked-slots-are-free", "worker/fetcher", "len(self.running) - self.requested_slots, self._max_batch", "len(self.running), self._max_batch", AHEAD),
    python("stop-drops-an-answer", "worker/fetcher", "finally:  # start what was claimed, whatever happens",
        "except ZeroDivisionError:\n                pass\n            else:", AHEAD),
    python("stop-forgets-a-claim", "worker/runtime", "self._is_busy() or self._fetcher.requested_slots or", "self._is_busy() or", AHEAD),
    python("stop-keeps-unread-claims", "worker/runtime", "await self._fetcher.release_unreceived(connection)", "pass", AHEAD),
    python("only-connection-kept", "worker/fetcher", "reversed(range(MAX_CONSECUTIVE_ROUND_TRIPS))", "reversed(range(MAX_CONSECUTIVE_ROUND_TRIPS * 1000))", AHEAD),
    sql("quota-passed-by-alone", "jobs/submit_standalone", "or not exists (select from holdfast.quotas)", "or true", "tests/engine/test_submit_standalone.py"),
    python("stopped-worker-is-renewed", "worker/heartbeat_process",
        "                if self._is_worker_stopped():\n                    await asyncio.sleep(TICK_S)\n                    continue\n", "",
        "tests/worker/test_hard.py"),
    python("unrenewed-attempt-goes-on", "worker/heartbeat", "            if now >= attempt.must_stop_at:\n", "            if False:\n",
        "tests/worker/test_heartbeat.py"),
    python("dead-heartbeat-is-not-replaced", "worker/heartbeat",
        '                telemetry.emit("worker.heartbeat_replaced", worker=self._worker)\n                self._start_process()\n', "",
        "tests/worker/test_heartbeat.py"),
    python("lost-message-goes-on", "worker/messages/visibility",
        "loop.call_soon_threadsafe(runner.cancel, reason)", "pass", "tests/worker/test_consumers.py"),
    python("drop-does-not-wait-for-a-renewal", "worker/messages/renewal",
        "confirmed = [number for number in numbers if number not in self._in_flight]", "confirmed = list(numbers)",
        "tests/worker/test_message_renewal.py"),
    python("token-of-another-audience", "server/api/token_verification", "                audience=self._settings.jwt_audience,\n", "",
        "tests/api/test_tokens.py"),
    python("user-sees-internal-errors", "server/api/job_views",
        '        redacted = {"type": "Error", "message": HIDDEN_ERROR_MESSAGE}',
        '        redacted = {"type": error_type, "message": str(error.get("message") or "")}', "tests/api/test_jobs.py"),
    python("signature-not-checked", "storage/signed_links", "if not hmac.compare_digest(signature, self._compute_signature(payload)):", "if False:",
        "tests/api/test_files.py"),
    python("expired-link-works", "storage/signed_links", ">= grant.expires:", ">= grant.expires + 10**9:", "tests/api/test_files.py"),
    python("daily-export-limit-ignored", "systems/exports/submission", "if usage.operations + created > limits.exports_per_day:", "if False:",
        "tests/systems/test_export_limits.py"),
    python("export-file-of-another-user", "systems/request_context", "return file if file.owner == owner else None", "return file",
        "tests/systems/test_export_routes.py"),
]  # fmt: skip

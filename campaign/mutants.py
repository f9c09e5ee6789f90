"""Known ways to get it wrong, put in on purpose: a campaign that does not catch them proves nothing.

Each mutant is one small change of the engine or the worker in a copy of the sources, and what must catch it: runs
of the campaign, or test files, in small doses. `python -m campaign.mutants` plants all of them, two at a time, and fails
if one survives. A change that no longer fits the sources is an error too, so the list stays true.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FUNCTIONS = "src/holdfast/engine/functions"
WORKER = "src/holdfast/worker"
MINUTES = 15


@dataclass(frozen=True)
class Mutant:
    """`before` stands in `file` and becomes `after`; `caught_by` names runs, or test files with a slash."""

    name: str
    file: str
    before: str
    after: str
    caught_by: tuple[str, ...]


def sql(name: str, file: str, before: str, after: str, *caught_by: str) -> Mutant:
    """A mutant of a function file, named by its folder and its name: `leases/claim`."""
    return Mutant(name, f"{FUNCTIONS}/{file}.sql", before, after, caught_by)


def python(name: str, file: str, before: str, after: str, *caught_by: str) -> Mutant:
    return Mutant(name, f"{WORKER}/{file}.py", before, after, caught_by)


LEASES = "tests/engine/test_leases.py"
FINISH = "tests/engine/test_finish.py"
DEPENDENCIES = "tests/engine/test_dependencies.py"
ACCESS = "tests/engine/test_access.py"
AHEAD = "tests/worker/test_asking_ahead.py"

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
    sql("one-attempt-too-many", "leases/outcomes", "p_task.failures + 1 >= p_policy.attempts", "p_task.failures >= p_policy.attempts", FINISH, "tests/engine/test_model.py"),
    sql("edge-satisfied-twice", "jobs/dependencies", "where e.parent_id = any (p_parents) and not e.satisfied and p.id = e.parent_id",
        "where e.parent_id = any (p_parents) and p.id = e.parent_id", DEPENDENCIES, "graphs"),
    sql("child-released-early", "jobs/dependencies", "case when c.waits = d.n or d.fails then v.outcome end",
        "case when c.waits >= d.n or d.fails then v.outcome end", "graphs", DEPENDENCIES),
    sql("job-counted-without-lock", "leases/finish", "perform from holdfast.jobs j where j.id = any (v_jobs) order by j.id for update;",
        "perform 1;", "graphs", DEPENDENCIES, "tests/engine/test_storm.py"),
    sql("limit-not-counted", "limits/counters", "v_count := least(v_count, coalesce(v_free[array_position(v_ids, v_counter_id)], 0));", "null;",
        "limits", "tests/engine/test_limits.py"),
    sql("limit-given-back-twice", "limits/counters", "set running = greatest(l.running - h.n, 0)", "set running = greatest(l.running - 2 * h.n, 0)",
        "limits", "tests/engine/test_limits.py"),
    sql("limit-never-given-back", "operations/tick", "perform holdfast.apply_end_effects(v_lanes, v_effects, p_now);",
        "perform holdfast.apply_end_effects(null, v_effects, p_now);",
        "limits", "tests/engine/test_limits.py"),
    sql("key-taken-by-everybody", "jobs/submit_keys", "  return v_existing.job_id;\nend $$;", "  return null;\nend $$;", "unique", "tests/engine/test_submit.py"),
    sql("key-with-another-body", "jobs/submit_keys", "if not p_active_only and v_existing.hash <> p_hash then", "if false then", "tests/engine/test_submit.py"),
    sql("callback-twice", "jobs/batches", "v_batch.callback is not null and v_batch.callback_job is null", "v_batch.callback is not null",
        DEPENDENCIES),
    sql("batch-ends-early", "jobs/retry", "if v_count > 0 and v_before.ended then", "if false then", DEPENDENCIES),
    sql("cancel-is-not-final", "jobs/cancel", "t.status || '' in ('waiting', 'scheduled', 'ready', 'running')\n    order by t.id for update",
        "t.status || '' in ('waiting', 'scheduled', 'ready')\n    order by t.id for update", "tests/engine/test_cancel.py", "cancels"),
    sql("cancel-of-a-stranger", "jobs/cancel", "if not holdfast.may_see_job(p_id, v_user) then", "if false then", ACCESS, "tests/engine/test_cancel.py"),
    sql("everybody-may-execute", "access/grants", "execute pg_catalog.format('revoke all on %s %s from %s', v_kind, v_objects, v_roles);", "null;",
        ACCESS, "tests/engine/test_install_access.py"),
    python("outcome-lost-on-reconnect", "fetcher", "self._outbox.put_back(", "(lambda *_: None)(", "tests/worker/test_processes.py", "crashes", "cut"),
    python("asked-slots-are-free", "fetcher", "len(self.running) - self.requested_slots, self._max_batch", "len(self.running), self._max_batch", AHEAD),
    python("stop-drops-an-answer", "fetcher", "finally:  # start what was claimed, whatever happens",
        "except ZeroDivisionError:\n                pass\n            else:", AHEAD),
    python("stop-forgets-a-claim", "runtime", "self._is_busy() or self._fetcher.requested_slots or", "self._is_busy() or", AHEAD),
    python("stop-keeps-unread-claims", "runtime", "await self._fetcher.release_unreceived(connection)", "pass", AHEAD),
    python("only-connection-kept", "fetcher", "reversed(range(MAX_CONSECUTIVE_ROUND_TRIPS))", "reversed(range(MAX_CONSECUTIVE_ROUND_TRIPS * 1000))", AHEAD),
    sql("quota-passed-by-alone", "jobs/submit_standalone", "or not exists (select from holdfast.quotas)", "or true", "tests/engine/test_submit_alone.py"),
]  # fmt: skip


@dataclass(frozen=True)
class MutantResult:
    mutant: Mutant
    caught_by: str | None
    seconds: float
    how: str = ""


def plant(mutant: Mutant, folder: Path) -> None:
    for part in ("src", "campaign", "tests", "examples"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "scripts"):
        source = ROOT / name
        shutil.copytree(source, folder / name) if source.is_dir() else shutil.copy(source, folder / name)
    place = folder / mutant.file
    text = place.read_text(encoding="utf-8")
    if text.count(mutant.before) != 1:
        raise LookupError(
            f"{mutant.name}: its text stands {text.count(mutant.before)} times in {mutant.file}"
        )
    place.write_text(text.replace(mutant.before, mutant.after), encoding="utf-8")


def complaint(hunter: str, folder: Path, seconds: float) -> str | None:
    """What a run or a test file finds wrong with the sources in a folder."""
    command = (
        [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", hunter]
        if "/" in hunter
        else [sys.executable, "-m", "campaign", hunter, "--seed", "1", "--dose", "tiny", "--slack", "3"]
    )
    environment = {**os.environ, "PYTHONPATH": f"{folder / 'src'}:{folder}"}
    # Into a file: whoever keeps the tests' server alive for the next ones would hold a pipe open for minutes.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        done = subprocess.run(
            command, cwd=folder, env=environment, stdout=output, stderr=output, timeout=seconds, check=False
        )
        output.seek(0)
        said = output.read()
    if done.returncode == 0:
        return None
    told = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
    told += [str(word) for word in _broken(said)]
    return (told or said.splitlines()[-1:] or ["?"])[0]


def _broken(output: str) -> list[str]:
    for line in output.splitlines():
        if line.startswith("{"):
            return list(json.loads(line).get("broken", []))
    return []


def hunt(mutant: Mutant) -> MutantResult:
    """Whoever of its hunters fails first has caught it."""
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="mutant-"))
    folder.chmod(0o755)
    try:
        plant(mutant, folder)
        for hunter in mutant.caught_by:
            how = complaint(hunter, folder, MINUTES * 60 - (time.monotonic() - began))
            if how is not None:
                return MutantResult(mutant, hunter, time.monotonic() - began, how)
        return MutantResult(mutant, None, time.monotonic() - began)
    except subprocess.TimeoutExpired:
        return MutantResult(mutant, None, time.monotonic() - began)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_hunters(chosen: list[Mutant], at_once: int) -> bool:
    """Nobody may cry wolf: every hunter finds nothing in the sources as they are."""
    hunters = sorted({hunter for mutant in chosen for hunter in mutant.caught_by})
    with ThreadPoolExecutor(at_once) as pool:
        told = dict(zip(hunters, pool.map(lambda h: complaint(h, ROOT, 900), hunters), strict=True))
    for hunter, how in told.items():
        if how is not None:
            print(f"{hunter} complains without any mutant: {how}")
    return not any(told.values())


def main() -> int:
    parser = argparse.ArgumentParser(prog="campaign.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="mutants; all if none are given")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument(
        "--trust", action="store_true", help="do not check first that the hunters find nothing"
    )
    parser.add_argument("--report", type=Path, default=None, help="append a line of a table for each")
    said = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if not said.names or mutant.name in said.names]
    if not said.trust and not check_hunters(chosen, said.at_once):
        return 2
    survivors = 0
    with ThreadPoolExecutor(said.at_once) as pool:
        for verdict in pool.map(hunt, chosen):
            survivors += verdict.caught_by is None
            told = f"caught by {verdict.caught_by}" if verdict.caught_by else "SURVIVED"
            print(f"{verdict.mutant.name:28} {told:40} {verdict.seconds:6.1f} s", flush=True)
            if said.report:
                with said.report.open("a", encoding="utf-8") as file:
                    file.write(
                        f"| {verdict.mutant.name} | {told} | {verdict.seconds:.0f} | {verdict.how[:160]} |\n"
                    )
    print(f"{len(chosen) - survivors} of {len(chosen)} mutants caught")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())

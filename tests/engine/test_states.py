"""The documents, the model and the tables have the same states, and documented statements run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from manual_worker import ManualWorker

from holdfast import model
from holdfast.engine.connection import Connection

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTED_SQL_BLOCKS = re.findall(
    r"```sql\n(.*?)```", (ROOT / "docs/reference/sql.md").read_text(), re.DOTALL
)


async def read_allowed_statuses(conn: Connection, table: str) -> set[str]:
    text = await conn.fetchval(
        "select pg_get_constraintdef(oid) from pg_constraint where conrelid = $1::text::regclass "
        "and pg_get_constraintdef(oid) like '%status%ARRAY%'",
        f"holdfast.{table}",
    )
    return set(re.findall(r"'(\w+)'::text", text))


async def test_tables_and_model_know_the_same_states(conn: Connection) -> None:
    assert await read_allowed_statuses(conn, "tasks") == set(model.TASK_STATUSES)
    assert await read_allowed_statuses(conn, "jobs") == set(model.JOB_STATUSES)
    assert await read_allowed_statuses(conn, "history") <= set(model.ENDED_STATUSES)


@pytest.mark.parametrize("status", [*model.TASK_STATUSES, *model.JOB_STATUSES])
def test_every_state_is_explained(status: str) -> None:
    assert f"`{status}`" in (ROOT / "docs/explain/states.md").read_text()


async def test_the_statements_of_the_reference_run(conn: Connection) -> None:
    assert len(DOCUMENTED_SQL_BLOCKS) == 4
    for block in DOCUMENTED_SQL_BLOCKS:
        await conn.execute(block)
    assert {task.type for task in await ManualWorker(conn, queues=["docs"]).claim_tasks(5)} == {"write"}


async def test_the_reference_names_every_function_that_others_may_call(conn: Connection) -> None:
    text = (ROOT / "docs/reference/sql.md").read_text()
    rows = await conn.fetch(
        """
        select distinct p.proname from pg_proc p
        where p.pronamespace = 'holdfast'::regnamespace
          and has_function_privilege('holdfast_worker', p.oid, 'execute')
          and p.prosrc ~ 'holdfast.(tasks|jobs|limit|batches|queues)'
        """
    )
    missing = [row["proname"] for row in rows if f"`{row['proname']}" not in text]
    assert missing == []

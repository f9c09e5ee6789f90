"""The tasks: functions that run in workers. A plain function runs in a thread of the worker."""

from __future__ import annotations

import os
from collections import Counter

import psycopg
from psycopg.types.json import Jsonb

from holdfast import Ctx, task


def connect() -> psycopg.Connection:
    """Open a connection to the database of the application, which is that of its jobs too."""
    return psycopg.connect(os.environ["DATABASE_URL"])


@task(queue="notes", retries=3, timeout=60)
def count_words(ctx: Ctx, note: int) -> dict[str, int]:
    """Count how often each word of a note occurs."""
    with connect() as connection:
        row = connection.execute("select text from notes where id = %s for update", [note]).fetchone()
        words = dict(Counter(row[0].lower().split())) if row else {}
        connection.execute("update notes set words = %s where id = %s", [Jsonb(words), note])
        ctx.complete(connection, words)  # the row changes exactly if the task has succeeded
    return words

"""SQL queries of the processing: what a bookmark still needs, and what each step has found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal
from uuid import UUID

from holdfast import Artifact
from holdfast.systems.bookmarks.messages import BOOKMARK_QUEUE
from holdfast.systems.tables import qualify_tables

ARCHIVE_CLEANUP_BATCH_ROWS: Final = 1000
# More messages of one user wait for their turn, so that an import does not delay the bookmarks of others.
MAX_VISIBLE_MESSAGES_PER_USER: Final = 8
RELEASE_LOCK_KEY: Final = 7_263_483_001  # of the advisory lock of whoever makes hidden messages visible
StepName = Literal["screenshot", "remaining"]
StepValues = dict[str, Any]  # new values by column
StepFiles = dict[str, Artifact]  # new files by column: screenshot, og_image or favicon
# Columns that a step may set. Their names become part of a statement, so nothing else may.
STEP_COLUMNS: Final = frozenset(
    {
        *("title", "description", "page_text", "og_image_url", "favicon_urls", "blurhash"),
        *("width", "height", "ocr", "caption"),
    }
)
FILE_COLUMNS: Final = frozenset({"screenshot", "og_image", "favicon"})


@dataclass(frozen=True)
class BookmarkState:
    """What the processing of a bookmark needs to know about its row."""

    id: int
    user_id: UUID
    url: str
    is_image: bool
    screenshot_status: str
    remaining_status: str
    og_image_url: str | None
    favicon_urls: Sequence[str]


_STATE_COLUMNS: Final = (
    "id, user_id, url, is_image, screenshot_status, remaining_status, og_image_url, favicon_urls"
)


def _prepare_query(query: str, schema: str, step: StepName = "screenshot") -> str:
    return qualify_tables(query.replace("<columns>", _STATE_COLUMNS).replace("<step>", step), schema)


async def is_installed(connection: Any, schema: str) -> bool:
    """Return whether the tables of the bookmark system exist in the schema."""
    table = qualify_tables("{}.bookmarks", schema)
    return bool(await connection.fetchval("select pg_catalog.to_regclass($1) is not null", table))


async def find_bookmark_owner(connection: Any, schema: str, bookmark_id: int) -> UUID | None:
    """Return the user of a bookmark, for old messages that do not name the user."""
    owner: UUID | None = await connection.fetchval(
        qualify_tables("select user_id from {}.bookmarks where id = $1", schema), bookmark_id
    )
    return owner


async def begin_processing(
    connection: Any, schema: str, bookmark_id: int, user_id: UUID, *, is_image: bool
) -> BookmarkState | None:
    """Mark a bookmark as being processed. Return None if the user has no bookmark with this id.

    An image needs no screenshot.
    """
    row = await connection.fetchrow(
        _prepare_query(
            "update {}.bookmarks set status = 'processing', attempts = attempts + 1,"
            " is_image = is_image or $3,"
            " screenshot_status = case when (is_image or $3) and screenshot_status <> 'succeeded'"
            " then 'skipped' else screenshot_status end where id = $1 and user_id = $2 returning <columns>",
            schema,
        ),
        bookmark_id,
        user_id,
        is_image,
    )
    return BookmarkState(**dict(row)) if row is not None else None


async def find_bookmark_state(
    connection: Any, schema: str, bookmark_id: int, user_id: UUID
) -> BookmarkState | None:
    """Return the state of a bookmark, or None if the user has no bookmark with this id."""
    row = await connection.fetchrow(
        _prepare_query("select <columns> from {}.bookmarks where id = $1 and user_id = $2", schema),
        bookmark_id,
        user_id,
    )
    return BookmarkState(**dict(row)) if row is not None else None


async def set_step_status(
    connection: Any, schema: str, bookmark_id: int, step: StepName, status: str, error: str | None = None
) -> None:
    """Store the status of one step. A step that has succeeded keeps its status."""
    await connection.execute(
        _prepare_query(
            "update {}.bookmarks set <step>_status = $2, <step>_error = $3"
            " where id = $1 and <step>_status <> 'succeeded'",
            schema,
            step,
        ),
        bookmark_id,
        status,
        error,
    )


async def mark_as_image(connection: Any, schema: str, bookmark_id: int) -> None:
    """Store that the URL of a bookmark is an image, which needs no screenshot."""
    await connection.execute(
        qualify_tables(
            "update {}.bookmarks set is_image = true, screenshot_status = 'skipped', screenshot_error = null"
            " where id = $1",
            schema,
        ),
        bookmark_id,
    )


async def save_step_result(
    connection: Any, schema: str, state: BookmarkState, step: StepName, values: StepValues, files: StepFiles
) -> bool:
    """Store what a step has found and that it succeeded, and keep its files.

    Return False and change nothing if the bookmark was deleted or the step has already succeeded.
    """
    names, file_names = sorted(STEP_COLUMNS & values.keys()), sorted(FILE_COLUMNS & files.keys())
    arguments: list[Any] = [state.id, state.user_id, *(values[name] for name in names)]
    assignments = ["version = version", *(f"{name} = ${number}" for number, name in enumerate(names, 3))]
    for name in file_names:
        arguments += [build_file_path(state, files[name]), files[name].id]
        assignments += [f"{name} = ${len(arguments) - 1}", f"{name}_file = ${len(arguments)}"]
    query = (
        "update {}.bookmarks set <step>_status = 'succeeded', <step>_error = null"
        ", <assignments> where id = $1 and user_id = $2 and <step>_status <> 'succeeded' returning id"
    )
    if (
        await connection.fetchval(
            _prepare_query(query, schema, step).replace("<assignments>", ", ".join(assignments)), *arguments
        )
        is None
    ):
        return False
    for name in file_names:
        await connection.execute("select holdfast.keep_artifact($1)", files[name].id)
    return True


def build_file_path(state: BookmarkState, file: Artifact) -> str:
    """Build the path of a file, which begins with the owner's id. The key in the store is another one."""
    return f"{state.user_id}/bookmarks/{state.id}/{file.name}"


async def fetch_max_reads(connection: Any, queue: str) -> int | None:
    """Return how often a message of the queue is read before it moves to the dead letters."""
    max_reads: int | None = await connection.fetchval(
        "select (holdfast.get_message_policy($1)).max_reads", queue
    )
    return max_reads


async def fail_message(connection: Any, queue: str, receipt: str, error: str, *, retry: bool) -> None:
    """Keep a message in the queue with its error, or move it to the dead letters if no retry can help."""
    statement = (
        "select * from holdfast.fail_messages($1, array[$2::text], $3, false)"
        if retry
        else "select * from holdfast.move_to_dead_letters($1, array[$2::text], $3)"
    )
    await connection.execute(statement, queue, receipt, error)


async def set_bookmark_status(connection: Any, schema: str, bookmark_id: int, status: str) -> None:
    """Store the status of a bookmark."""
    await connection.execute(
        qualify_tables("update {}.bookmarks set status = $2 where id = $1", schema), bookmark_id, status
    )


async def mark_as_failed(connection: Any, schema: str, bookmark_id: int, message_id: int) -> None:
    """Store that a bookmark failed, unless a newer message is on its way."""
    await connection.execute(
        qualify_tables(
            "update {}.bookmarks set status = 'failed' where id = $1 and message_id = $2"
            " and status in ('pending', 'processing', 'retrying')",
            schema,
        ),
        bookmark_id,
        message_id,
    )


async def mark_abandoned_as_failed(connection: Any, schema: str, older: timedelta) -> int:
    """Store that bookmarks failed whose message is no longer in the queue. Return how many there were.

    A worker that is killed on each read of a message cannot record the failure: maintenance moves the message
    to the dead letters.
    """
    status: str = await connection.execute(
        qualify_tables(
            "update {}.bookmarks b set status = 'failed'"
            " where b.status in ('pending', 'processing', 'retrying')"
            " and b.updated_at < clock_timestamp() - $1::interval and b.message_id is not null"
            ' and not exists (select from pgmq."q_add-bookmark-url-queue" q where q.msg_id = b.message_id)',
            schema,
        ),
        older,
    )
    return int(status.rpartition(" ")[2])


async def mark_as_retrying(connection: Any, schema: str, bookmark_id: int) -> None:
    """Store that the processing of a bookmark was interrupted and will begin again."""
    await connection.execute(
        qualify_tables(
            "update {}.bookmarks set status = 'retrying' where id = $1 and status = 'processing'", schema
        ),
        bookmark_id,
    )


async def claim_step(
    connection: Any, schema: str, bookmark_id: int, step: StepName, max_age: timedelta
) -> bool:
    """Mark one step as running. Return False if it already runs, unless its process died."""
    claimed = await connection.fetchval(
        _prepare_query(
            "update {}.bookmarks set <step>_status = 'running' where id = $1 and (<step>_status <> 'running'"
            " or updated_at < clock_timestamp() - $2::interval) returning id",
            schema,
            step,
        ),
        bookmark_id,
        max_age,
    )
    return claimed is not None


async def complete_if_finished(connection: Any, schema: str, bookmark_id: int) -> None:
    """Store that a bookmark is complete if all the steps it needs have succeeded."""
    await connection.execute(
        qualify_tables(
            "update {}.bookmarks set status = 'complete' where id = $1 and status <> 'complete'"
            " and screenshot_status in ('succeeded', 'skipped') and remaining_status = 'succeeded'",
            schema,
        ),
        bookmark_id,
    )


async def release_waiting_messages(connection: Any, schema: str) -> None:
    """If no message is ready, make the next hidden ones visible: users in turns. See `additions.py`.

    The connection must be in a transaction. Only one at a time releases messages.
    """
    if not await connection.fetchval("select pg_catalog.pg_try_advisory_xact_lock($1)", RELEASE_LOCK_KEY):
        return
    status: str = await connection.execute(
        qualify_tables(
            'update pgmq."q_add-bookmark-url-queue" q set vt = clock_timestamp() from ('
            " select h.msg_id, row_number() over (partition by b.user_id order by h.msg_id) as turn"
            ' from {}.bookmarks b join pgmq."q_add-bookmark-url-queue" h on h.msg_id = b.message_id'
            " where b.status = 'pending' and h.read_ct = 0 and h.vt > clock_timestamp()"
            " order by turn, h.msg_id limit $1) as next"
            " where q.msg_id = next.msg_id and q.read_ct = 0 and q.vt > clock_timestamp() and not exists ("
            ' select from pgmq."q_add-bookmark-url-queue" r where r.vt <= clock_timestamp())',
            schema,
        ),
        MAX_VISIBLE_MESSAGES_PER_USER,
    )
    if status != "UPDATE 0":
        await connection.execute("select holdfast.wake_message_readers($1)", BOOKMARK_QUEUE)


async def delete_archived_messages(connection: Any, older: timedelta) -> int:
    """Delete one batch of messages from the archive of the queue. Return how many were deleted."""
    status: str = await connection.execute(
        'delete from pgmq."a_add-bookmark-url-queue" where msg_id in ('
        'select msg_id from pgmq."a_add-bookmark-url-queue" where archived_at < holdfast.now() - $1::interval'
        " order by msg_id limit $2 for update skip locked)",
        older,
        ARCHIVE_CLEANUP_BATCH_ROWS,
    )
    return int(status.rpartition(" ")[2])

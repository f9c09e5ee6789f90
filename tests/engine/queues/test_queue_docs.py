"""The SQL in the pages about messages runs, in order, in one database."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.engine.connection import Connection

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("page", ["reference/pgmq.md", "explain/messages.md"])
async def test_every_statement_of_the_page_works(conn: Connection, page: str) -> None:
    blocks = re.findall(r"```sql\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        await conn.execute(block)

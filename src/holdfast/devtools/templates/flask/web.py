"""The web application: it stores a note and submits its job in one transaction.

flask --app web run --port 8000
"""

from __future__ import annotations

from pathlib import Path

from flask import Flask, abort, request
from tasks import connect, count_words

from holdfast import Client

SCHEMA = (Path(__file__).parent / "schema.sql").read_text()

client = Client()  # uses DATABASE_URL; connects at first use
app = Flask(__name__)


@app.cli.command("create-tables")
def create_tables() -> None:
    """Create the tables of the application."""
    with connect() as connection:
        connection.execute(SCHEMA)


@app.post("/notes")
def add_note() -> tuple[dict[str, object], int]:
    text = str((request.get_json() or {}).get("text", ""))
    if not text:
        abort(400, "text is missing")
    with connect() as connection:  # commits at the end of the block
        row = connection.execute("insert into notes (text) values (%s) returning id", [text]).fetchone()
        note = row[0] if row else 0
        job = client.blocking.submit(count_words(note), on=connection, key=f"note:{note}")
    return {"note": f"/notes/{note}", "job": str(job.id)}, 202


@app.get("/notes/<int:note>")
def show_note(note: int) -> dict[str, object]:
    with connect() as connection:
        row = connection.execute("select text, words from notes where id = %s", [note]).fetchone()
    if row is None:
        abort(404)
    return {"text": row[0], "words": row[1]}

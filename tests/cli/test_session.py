"""`holdfast session` on a real database."""

from __future__ import annotations

import secrets
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from shell import Captured, Shell

from holdfast.engine import audit, sessions
from holdfast.engine.sessions import NewSession
from holdfast.settings import Secret


@pytest.fixture
def shell(url: Secret, capsys: Captured) -> Shell:
    return Shell(url, capsys)


def start_session(shell: Shell, name: str) -> UUID:
    session = NewSession(
        digest=secrets.token_bytes(32), login="link", name=name, role="viewer", address="192.0.2.1"
    )
    session_id = shell.query(lambda conn: sessions.start_session(conn, session, timedelta(hours=1)))
    assert session_id is not None
    return session_id


def test_sessions_are_listed_and_ended(shell: Shell) -> None:
    assert shell.json("session", "list") == []
    ann, bob = start_session(shell, "ann"), start_session(shell, "bob")
    listed = {row["name"]: row for row in shell.json("session", "list")}
    assert listed["ann"]["id"] == str(ann)
    assert (listed["bob"]["role"], listed["bob"]["login"], listed["bob"]["address"]) == (
        "viewer",
        "link",
        "192.0.2.1",
    )
    assert "hash" not in listed["ann"]
    assert str(bob) in shell("session", "list")
    assert "--yes" in shell("session", "end", str(ann), code=5)
    assert "Nothing was changed" in shell("session", "end", str(ann), "--dry-run")
    assert shell("session", "end", str(ann), "--yes").strip() == "1 session ended."
    assert "does not exist or has ended already" in shell("session", "end", str(ann), "--yes", code=3)
    assert [row["name"] for row in shell.json("session", "list")] == ["bob"]
    assert shell.json("session", "end", "--all", "--yes") == [{"ended": 1}]
    assert shell("session", "end", "--all", "--yes").strip() == "0 sessions ended."
    entries = shell.query(audit.list_audit_entries)
    assert [(entry.action, entry.target) for entry in entries] == [
        ("session.end_all", None),
        ("session.end", str(ann)),
    ]


def test_session_end_needs_one_target(shell: Shell) -> None:
    assert "either ID or --all" in shell("session", "end", code=2)
    assert "either ID or --all" in shell("session", "end", str(uuid4()), "--all", code=2)
    assert "not a session id" in shell("session", "end", "x", "--yes", code=2)

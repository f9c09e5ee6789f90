"""`holdfast key` on a real database."""

from __future__ import annotations

import pytest
from shell import Captured, Shell

from holdfast.settings import Secret


@pytest.fixture
def shell(url: Secret, capsys: Captured) -> Shell:
    return Shell(url, capsys)


def test_key_is_created_listed_and_revoked(shell: Shell) -> None:
    key = shell("key", "create", "billing", "--scope", "jobs", "--scope", "metrics").strip()
    assert key.startswith("hf_")
    assert len(key) == 11 + 1 + 43
    [listed] = shell.json("key", "list")
    assert (listed["prefix"], listed["scopes"], listed["state"]) == (key[:11], "jobs,metrics", "active")
    assert key not in shell("key", "list")
    assert "--yes" in shell("key", "revoke", key[:11], code=5)
    assert "revoked" in shell("key", "revoke", key[:11], "--yes")
    assert "does not exist or is revoked already" in shell("key", "revoke", key[:11], "--yes", code=3)
    assert shell.json("key", "list")[0]["state"] == "revoked"


def test_unknown_scope_is_refused_with_the_known_ones(shell: Shell) -> None:
    assert "operate" in shell("key", "create", "x", "--scope", "everything", code=2)
    [created] = shell.json("key", "create", "x", "--expires", "1d")
    assert created["expires_at"] is not None
    assert created["key"].startswith(created["prefix"])

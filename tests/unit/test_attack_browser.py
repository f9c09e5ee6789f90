"""The full dose of the attacks does not pass without Chromium."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from attack.attacks import hostile_text
from attack.findings import AttackLog


@pytest.mark.parametrize(("dose", "findings"), [("full", 1), ("short", 0)])
async def test_missing_chromium_is_a_finding_of_the_full_dose(
    monkeypatch: pytest.MonkeyPatch, dose: str, findings: int
) -> None:
    async def find_nothing() -> None:
        return None

    monkeypatch.setattr(hostile_text, "find_chromium_program", find_nothing)
    log = AttackLog()
    await hostile_text.attack_browser(cast("Any", SimpleNamespace(is_short=dose == "short")), log)
    assert len(log.findings) == findings

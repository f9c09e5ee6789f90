"""Budgets of reports: a report stops with a reason when the money of its owner is spent."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from stub_text_providers import OneSentenceTextProvider
from system_harness import SystemHarness, SystemUser

from holdfast.settings import Settings
from holdfast.testing import wait_until

START = {"type": "nuclear_v2", "params": {"person1": {"name": "Ana"}, "person2": {"name": "Bo"}}}
RECORD_CALL = (
    "select holdfast.record_provider_call($1, 'text', 'host', 'm', 'succeeded', $2, p_cost => $3::numeric)"
)


@pytest.fixture
def system_settings(system_settings: Settings) -> Settings:
    return replace(system_settings, report_budget_cents=250)


@pytest.mark.timeout(120)
async def test_a_report_stops_with_a_reason_when_the_budget_is_used_up(
    reports_system: SystemHarness,
) -> None:
    ann, bob = reports_system.create_user(), reports_system.create_user()

    async def spend(user: SystemUser, amount: str) -> None:
        async with reports_system.db.connection() as connection:
            await connection.execute(RECORD_CALL, uuid4(), user.id, amount)

    async def find_failed_report() -> Any:
        report = (await ann.get(f"/api/jobs/{report_id}")).json()
        return report if report["status"] == "failed" else None

    await spend(ann, "2.40")
    report_id = (await ann.post("/api/jobs/start", START)).json()["id"]
    await spend(ann, "0.10")
    async with reports_system.run_worker(text_provider=OneSentenceTextProvider()):
        report = await wait_until(find_failed_report, within=timedelta(seconds=60))
    assert report["error"] == "The budget of 2.50 for 30 days is used up: 2.50 was spent."
    assert report["progress"]["docsComplete"] == 0
    refused = await ann.post("/api/jobs/start", START)
    assert (refused.status_code, "2.50" in refused.json()["detail"]) == (429, True)
    assert (await bob.post("/api/jobs/start", START)).status_code == 202

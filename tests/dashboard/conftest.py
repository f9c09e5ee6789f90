"""One database with sample data and one dashboard server per test module."""

from __future__ import annotations

import uuid
from collections.abc import Generator
from dataclasses import replace

import pytest
from dashboard_server import DashboardServer, run_dashboard_server

from holdfast.settings import Secret, Settings


@pytest.fixture(scope="module")
def dashboard(server_url: Secret, template: str, settings: Settings) -> Generator[DashboardServer]:
    """A running dashboard with sample data, shared by the tests of a module."""
    server_settings = replace(settings, service_key=Secret("hf_test_key"), pool_size=12)
    with run_dashboard_server(
        server_url, template, server_settings, f"hf_test_{uuid.uuid4().hex[:16]}"
    ) as server:
        yield server

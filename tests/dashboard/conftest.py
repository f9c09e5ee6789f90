"""One filled database and one server for each file of tests."""

from __future__ import annotations

import uuid
from collections.abc import Generator
from dataclasses import replace

import pytest
from exhibition import Exhibition, exhibited

from holdfast.settings import Secret, Settings


@pytest.fixture(scope="module")
def shown(server_url: Secret, template: str, settings: Settings) -> Generator[Exhibition]:
    own = replace(settings, service_key=Secret("hf_test_key"), pool_size=12)
    with exhibited(server_url, template, own, f"hf_test_{uuid.uuid4().hex[:16]}") as found:
        yield found

from __future__ import annotations

import pytest
import shop

from holdfast.testing import Holdfast


@pytest.fixture(scope="session")
def hf_prepare() -> str:
    return "create table sent (recipient text); create table charges (number int)"


@pytest.fixture(autouse=True)
def own_database(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shop, "URL", hf.url)

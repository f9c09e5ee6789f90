"""pip install 'holdfast[server,files,testing]' && pytest: routes and task with the real engine."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import contacts
import httpx
import jwt
import pytest

from holdfast import load_settings
from holdfast.server import create_app
from holdfast.testing import Holdfast

JWT_SECRET = "a secret of at least thirty-two characters"


def create_token(user: str) -> str:
    """Create a token as the login of your application does."""
    claims = {"sub": user, "aud": "authenticated", "iss": "https://app.example"}
    return jwt.encode({**claims, "exp": datetime.now(UTC) + timedelta(hours=1)}, JWT_SECRET, "HS256")


@pytest.fixture
async def http(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[httpx.AsyncClient]:
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", hf.url)
    monkeypatch.setenv("HOLDFAST_JWT_SECRET", JWT_SECRET)
    monkeypatch.setenv("HOLDFAST_JWT_ISSUER", "https://app.example")
    settings = load_settings()
    async with hf.client.connection() as connection:
        await contacts.install_if_needed(connection)
    app = create_app(settings, **contacts.mount())
    headers = {"Authorization": f"Bearer {create_token(str(uuid4()))}"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://test", headers=headers
    ) as http:
        yield http
    await app.state.holdfast.close()


async def import_file(http: httpx.AsyncClient, content: str) -> Any:
    return (await http.post("/api/v1/contacts/import", content=content)).json()["jobId"]


async def test_an_import_stores_valid_rows_and_reports_the_others(
    hf: Holdfast, http: httpx.AsyncClient
) -> None:
    job = await import_file(http, "name,email\nAnn,ann@example.com\nBob,nonsense\n")
    await hf.drain()
    assert (await http.get(f"/api/jobs/{job}")).json()["output"] == {"imported": 1, "refused": 1}
    listed = (await http.get("/api/v1/contacts")).json()["contacts"]
    assert listed == [{"email": "ann@example.com", "name": "Ann"}]


async def test_a_file_without_columns_is_refused_with_a_reason(hf: Holdfast, http: httpx.AsyncClient) -> None:
    job = await import_file(http, "nonsense")
    await hf.drain()
    error = (await http.get(f"/api/jobs/{job}")).json()["error"]
    assert "columns name and email" in error["message"]


async def test_requests_without_a_token_are_refused(http: httpx.AsyncClient) -> None:
    http.headers.pop("Authorization")
    assert (await http.get("/api/v1/contacts")).status_code == 401

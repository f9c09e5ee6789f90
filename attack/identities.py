"""Who attacks: users, keys of every scope, dashboard roles, and callers whose credential must not work."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import uuid4

import httpx
from api_clients import bearer_headers, make_token

from holdfast.engine import access
from holdfast.engine.access import SCOPE_DESCRIPTIONS
from holdfast.engine.connection import Connection
from holdfast.server.dashboard import create_login_link
from holdfast.server.dashboard.roles import PERMISSIONS_BY_ROLE


@dataclass
class User:
    """A user with a token. `marker` is in every text that the user stores, and in no text of anybody else.

    `ids` are the ids of the user's objects by kind: job, task, batch, artifact, webhook, and more of systems.
    """

    name: str
    id: str = field(default_factory=lambda: str(uuid4()))
    ids: dict[str, str] = field(default_factory=dict[str, str])
    names: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def marker(self) -> str:
        return f"planted-by-{self.name}-{self.id[:8]}"

    @property
    def headers(self) -> dict[str, str]:
        return bearer_headers(make_token(self.id))

    @property
    def claims(self) -> dict[str, Any]:
        return {"sub": self.id, "role": "authenticated"}


@dataclass(frozen=True)
class Identity:
    """A caller of the API. `invalid` callers must be treated like anonymous ones."""

    name: str
    kind: Literal["invalid", "user", "service"]
    headers: dict[str, str]
    scopes: frozenset[str] = frozenset()


async def create_key(connection: Connection, *scopes: str) -> str:
    """Create a service key with these scopes and return its text."""
    key, prefix, digest = access.generate_service_key()
    await access.create_service_key(
        connection, name=f"attack {' '.join(scopes)}", prefix=prefix, digest=digest, scopes=scopes
    )
    return key.reveal()


async def create_key_identities(connection: Connection) -> list[Identity]:
    """Create one key for each scope."""
    return [
        Identity(
            f"key {scope}",
            "service",
            bearer_headers(await create_key(connection, scope)),
            frozenset({scope}),
        )
        for scope in SCOPE_DESCRIPTIONS
    ]


async def create_invalid_identities(connection: Connection, base: str, victim: User) -> list[Identity]:
    """Create the callers whose credential must not work: nobody, expired, unknown, revoked, and cookies."""
    revoked = await create_key(connection, access.ALL_SCOPES_WILDCARD)
    await access.revoke_service_key(connection, revoked[:11])
    identities = {
        "anonymous": {},
        "expired token": bearer_headers(make_token(victim.id, exp=int(time.time()) - 60)),
        "unknown key": bearer_headers("hf_aaaaaaaa_" + "x" * 43),
        "revoked key": bearer_headers(revoked),
        "token as cookie": {"cookie": f"session={make_token(victim.id)}; token={make_token(victim.id)}"},
    }
    for role in PERMISSIONS_BY_ROLE:
        browser = await sign_in_to_dashboard(connection, base, role)
        cookies = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
        await browser.aclose()
        identities[f"dashboard {role}"] = {"cookie": cookies, "sec-fetch-site": "same-origin"}
    return [Identity(name, "invalid", headers) for name, headers in identities.items()]


async def sign_in_to_dashboard(connection: Connection, base: str, role: str) -> httpx.AsyncClient:
    """Return a client that is signed in to the dashboard, as a browser is."""
    link = await create_login_link(connection, f"{base}/dashboard", name=f"attacker {role}", role=role)
    client = httpx.AsyncClient(base_url=f"{base}/dashboard", timeout=60, follow_redirects=False)
    response = await client.get(link)
    assert response.status_code == 303, f"the login link was refused: {response.status_code}"
    return client

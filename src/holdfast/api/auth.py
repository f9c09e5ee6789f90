"""Who is asking. So far: services, by the key in the settings; nobody else gets in."""

from __future__ import annotations

import hmac

from starlette.exceptions import HTTPException
from starlette.requests import Request

from holdfast.settings import Secret


def require_service(request: Request, key: Secret | None) -> None:
    """Let a request through that carries the service key as its bearer token."""
    if key is None:
        raise HTTPException(401, "No service key is configured; set HOLDFAST_SERVICE_KEY")
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.encode(), key.reveal().encode()):
        raise HTTPException(401, "A valid service key is required")

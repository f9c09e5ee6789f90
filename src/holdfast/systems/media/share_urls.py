"""Check the URL of a share before it is queued, and recognise the same URL when it is shared again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, cast

from holdfast import Settings
from holdfast.egress import EgressError, EgressPolicy, EgressRefusedError
from holdfast.errors import InvalidError
from holdfast.systems.url_field import parse_url_field


@dataclass(frozen=True)
class ShareUrl:
    """A URL that may be shared. `text` is what the user wrote, `key` the SHA-256 of its normalised form."""

    text: str
    host: str
    port: int
    key: bytes


def parse_share_url(value: object, settings: Settings) -> ShareUrl:
    """Check a URL without asking a name server. Raise `InvalidError` (422), which names the reason."""
    text, parsed = parse_url_field(value)
    check_media_host(parsed.host, settings)
    normalized = f"{parsed.scheme}://{parsed.authority}{parsed.path}"
    return ShareUrl(text, parsed.host, parsed.port, hashlib.sha256(normalized.encode()).digest())


def check_media_host(host: str, settings: Settings) -> None:
    """Raise `InvalidError` if `media_hosts` names hosts, and neither this host nor a parent of it."""
    allowed = [name.strip().lower() for name in settings.media_hosts.split(",") if name.strip()]
    if allowed and not any(host == name or host.endswith(f".{name}") for name in allowed):
        raise InvalidError(
            f"Media of the host {host} cannot be downloaded here.",
            fix=f"Share a link to {', '.join(allowed[:10])}.",
            field="url",
        )


async def check_share_address(url: ShareUrl, policy: EgressPolicy) -> None:
    """Resolve the host and raise `InvalidError` if it is not on the public internet.

    The download checks every address again, because the answer of a name server can change. A name server
    that fails now may work then, so only a refusal counts.
    """
    try:
        await policy.resolve(url.host, url.port)
    except EgressRefusedError as error:
        raise InvalidError(error.message, fix="Share a link to a public website.", field="url") from None
    except EgressError:
        return


def is_premium_user(claims: dict[str, Any], settings: Settings) -> bool:
    """Return whether the token of a user names a premium plan, at the setting `media_plan_claim`."""
    value: Any = claims
    for name in settings.media_plan_claim.split("."):
        value = cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None
    plans = {plan.strip().lower() for plan in settings.media_premium_plans.split(",") if plan.strip()}
    return isinstance(value, str) and value.lower() in plans

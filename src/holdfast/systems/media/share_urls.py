"""Check the URL of a share before it is queued, and recognise the same URL when it is shared again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final, cast

from holdfast import Settings
from holdfast.egress import EgressError, EgressPolicy, EgressRefusedError, parse_egress_url
from holdfast.errors import InvalidError

MAX_URL_BYTES: Final = 8192


@dataclass(frozen=True)
class ShareUrl:
    """A URL that may be shared. `text` is what the user wrote, `key` the SHA-256 of its normalised form."""

    text: str
    host: str
    port: int
    key: bytes


def parse_share_url(value: object, settings: Settings) -> ShareUrl:
    """Check a URL without asking a name server. Raise `InvalidError` (422), which names the reason."""
    if not isinstance(value, str):
        raise InvalidError("url must be a text.", fix="Send a URL such as https://example.com/.", field="url")
    text = value.strip()
    try:
        too_long = len(text.encode()) > MAX_URL_BYTES
    except UnicodeEncodeError:  # half of a surrogate pair
        raise InvalidError("The URL contains a character that is not valid.", field="url") from None
    if too_long:
        raise InvalidError(f"The URL is longer than {MAX_URL_BYTES} bytes.", field="url")
    try:
        parsed = parse_egress_url(text)
    except EgressRefusedError as error:
        raise InvalidError(error.message, fix=error.fix, field="url") from None
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

"""The configuration of one kind of provider. Every kind uses the same names of settings.

<kind>_url       base URL of the server; without it, the local provider is used
<kind>_key       API key, sent as a bearer token
<kind>_model     name of the model
<kind>_timeout   maximum duration of one request
<kind>_max_tokens   maximum length of an answer (text and vision)
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlsplit

from holdfast import Secret, Settings
from holdfast.errors import SettingsError
from holdfast.systems.providers.usage import ProviderKind


@dataclass(frozen=True, kw_only=True)
class ProviderConfig:
    """Where a remote provider is, and the limits of its requests."""

    kind: ProviderKind
    url: str
    model: str
    api_key: Secret | None = None
    timeout: timedelta = timedelta(seconds=60)
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        url = urlsplit(self.url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise SettingsError(
                f"{self.kind}_url is not a valid HTTP URL.",
                fix="Use a base URL such as https://api.example.com/v1.",
                field=f"{self.kind}_url",
            )

    @classmethod
    def from_settings(cls, settings: Settings, kind: ProviderKind) -> ProviderConfig | None:
        """Return the configuration of a kind, or None if its URL is not set."""
        url: str | None = getattr(settings, f"{kind}_url")
        if url is None:
            return None
        return cls(
            kind=kind,
            url=url,
            model=getattr(settings, f"{kind}_model"),
            api_key=getattr(settings, f"{kind}_key"),
            timeout=getattr(settings, f"{kind}_timeout"),
            max_tokens=getattr(settings, f"{kind}_max_tokens", None),
        )

    @property
    def host(self) -> str:
        """Return the host of the provider. Usage and limits are counted by it."""
        return urlsplit(self.url).hostname or ""

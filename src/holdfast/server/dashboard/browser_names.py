"""Short names for browsers, from the header User-Agent."""

from __future__ import annotations

import re

from holdfast.formatting import truncate_text

MAX_UNKNOWN_AGENT_CHARS = 40
# The first match counts: most browsers also claim to be the ones below them.
_BROWSER_PATTERNS = (
    ("Edge", r"Edg(?:e|A|iOS)?/(\d+)"),
    ("Opera", r"OPR/(\d+)"),
    ("Samsung Internet", r"SamsungBrowser/(\d+)"),
    ("Firefox", r"(?:Firefox|FxiOS)/(\d+)"),
    ("Chrome", r"(?:Chrome|HeadlessChrome|CriOS)/(\d+)"),
    ("Safari", r"Version/(\d+)[\d.]* (?:Mobile/\S+ )?Safari/"),
    ("curl", r"^curl/(\d+)"),
)
_SYSTEM_PATTERNS = (
    ("Windows", r"Windows"),
    ("Android", r"Android"),
    ("iPhone", r"iPhone"),
    ("iPad", r"iPad"),
    ("macOS", r"Mac OS X|Macintosh"),
    ("ChromeOS", r"CrOS"),
    ("Linux", r"Linux|X11"),
)


def describe_browser(user_agent: str | None) -> str:
    """Return a short name such as `Firefox 128 on Linux`, or the beginning of an unknown user agent."""
    if not user_agent:
        return "unknown"
    browser = next(
        (
            f"{name} {match[1]}"
            for name, pattern in _BROWSER_PATTERNS
            if (match := re.search(pattern, user_agent))
        ),
        None,
    )
    system = next((name for name, pattern in _SYSTEM_PATTERNS if re.search(pattern, user_agent)), None)
    if browser is None:
        return truncate_text(user_agent, MAX_UNKNOWN_AGENT_CHARS)
    return browser if system is None else f"{browser} on {system}"

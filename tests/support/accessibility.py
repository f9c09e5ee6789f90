"""Check pages in a browser with axe-core, in the light and in the dark theme."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped]
from playwright.async_api import Page

AXE_OPTIONS: dict[str, Any] = {
    "resultTypes": ["violations"],
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
}
# The themes differ in their colours only.
DARK_AXE_OPTIONS: dict[str, Any] = {"runOnly": {"type": "rule", "values": ["color-contrast"]}}


# Colours fade when the theme changes. Axe must not measure them half-way.
WAIT_FOR_TRANSITIONS = """async () => {
  await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
  const running = document.getAnimations().filter((animation) => animation instanceof CSSTransition);
  await Promise.allSettled(running.map((animation) => animation.finished));
}"""


@dataclass
class AccessibilityCheck:
    """Collects what axe finds on the pages of a test."""

    problems: list[str] = field(default_factory=list[str])

    async def check(self, page: Page, name: str) -> None:
        for theme, options in (("light", AXE_OPTIONS), ("dark", DARK_AXE_OPTIONS)):
            await page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
            await page.evaluate(WAIT_FOR_TRANSITIONS)
            report = await Axe().run(page, options=options)
            for violation in report.response["violations"]:
                targets = [" ".join(map(str, node["target"])) for node in violation["nodes"][:3]]
                details = violation["nodes"][0].get("failureSummary", "").replace("\n", " ")
                self.problems.append(f"{name} ({theme}): {violation['id']} at {targets}: {details}")
        await page.emulate_media(color_scheme="light")

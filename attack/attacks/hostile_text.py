"""Hostile texts in everything that is stored, shown by real Chromium on every page, systems included.

No text may run as a script, and no text may become an element: the browser reports a violation of the content
security policy for an injected script even if the policy stops it.
"""

from __future__ import annotations

import asyncio
import re
from html import unescape
from typing import Any

from api_clients import make_token
from chromium import CHROMIUM_OPTIONS
from hostile_data import HOSTILE_TEXTS, create_hostile_data
from playwright.async_api import BrowserContext, Error, Page, async_playwright

from attack.attacks.attack import Attack
from attack.attacks.dashboard import LINK_PATTERN
from attack.attacks.hostile_rows import store_hostile_rows
from attack.findings import AttackLog
from attack.identities import User
from attack.target import ROOT, Product
from holdfast.server.dashboard import create_login_link
from holdfast.systems.exports.resumes import load_sample_documents

MAX_PAGES = {"short": 24, "full": 1000}
MAX_PAGES_PER_ROUTE = {"short": 1, "full": 40}
PAGES_WITHOUT_CONTENT = {"/api/docs"}  # no element is filled in by a script
PAGES_WITHOUT_TEXTS = {"/", "/api/docs", "/reports"}  # nothing that a user wrote is shown there
# Elements that only a text can have brought: no page of the product has them.
INJECTED_ELEMENTS = "img[src='x'], svg[onload], [onerror], script:not([src]):not([type='application/json'])"
WATCH_VIOLATIONS = """
window.violations = [];
document.addEventListener('securitypolicyviolation', event => {
  window.violations.push(`${event.effectiveDirective} ${event.blockedURI} ${event.sample}`);
});
"""


async def find_chromium_program() -> str | None:
    process = await asyncio.create_subprocess_exec(
        ROOT / "scripts" / "chromium.sh", "--find", stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return output.decode().strip() if process.returncode == 0 else None


async def store_hostile_texts(product: Product) -> User:
    """Store hostile texts directly, by the API, and in every system."""
    known = await product.connection.fetchval("select to_regclass('pgmq.q_clips')")
    if known is None:
        await product.connection.execute("select pgmq.create('clips')")
    await create_hostile_data(product.connection)
    mallory = User("mallory")
    texts = HOSTILE_TEXTS[:5]
    sample = dict(load_sample_documents())["amara"]
    for text in texts:
        body = {"type": "planted", "params": {"text": text}, "labels": {"label": text}}
        await product.http.post("/api/jobs/start", json=body, headers=mallory.headers)
        await product.http.post("/api/batches", json={"name": text}, headers=mallory.headers)
        profile = {**sample.data["profile"], "name": text, "headline": text, "summary": text}
        document = {"title": text, "data": {**sample.data, "profile": profile}}
        await product.http.post("/api/v1/export/documents", json=document, headers=mallory.headers)
        person = {"name": text[:200]}
        report = {"type": "nuclear_v2", "params": {"person1": person, "person2": person}}
        started = await product.http.post("/api/jobs/start", json=report, headers=mallory.headers)
        await product.http.delete(f"/api/jobs/{started.json().get('id')}", headers=mallory.headers)
    await store_hostile_rows(product, mallory, texts)
    return mallory


class WatchedTab:
    """A tab that records what the browser reports about scripts and policies."""

    def __init__(self, page: Page, log: AttackLog) -> None:
        self.page, self.log = page, log
        self.reports: list[str] = []
        page.on("console", lambda message: self.reports.append(message.text))
        page.on("pageerror", lambda error: self.reports.append(str(error)))
        page.on("dialog", lambda dialog: self.reports.append(f"dialog {dialog.message}"))

    async def check(self, what: str) -> None:
        """Check that no hostile text became a script or an element on this page."""
        hacked, violations, elements = await self.page.evaluate(
            "selector => [window.hacked, window.violations || [], "
            "[...document.querySelectorAll(selector)].map(element => element.outerHTML.slice(0, 200))]",
            INJECTED_ELEMENTS,
        )
        self.log.check(hacked is None, f"a stored text runs as a script on {what}", what, "browser")
        self.log.check(not violations, f"policy violations on {what}: {violations}", what, "browser")
        self.log.check(not elements, f"a stored text is an element on {what}: {elements}", what, "browser")
        policy = [text for text in self.reports if "Content Security Policy" in text or "dialog" in text]
        self.log.check(not policy, f"the browser reports on {what}: {policy[:3]}", what, "browser")
        self.reports.clear()


async def open_tab(context: BrowserContext, log: AttackLog) -> WatchedTab:
    page = await context.new_page()
    await page.add_init_script(WATCH_VIOLATIONS)
    return WatchedTab(page, log)


async def walk_dashboard(product: Product, log: AttackLog, context: BrowserContext) -> None:
    """Open the pages that links lead to, a few of each route."""
    tab = await open_tab(context, log)
    link = await create_login_link(product.connection, f"{product.base}/dashboard", name="<b>ann</b>")
    await tab.page.goto(link)
    queue, seen, opened = ["/dashboard/"], set[str](), dict[str, int]()
    while queue and sum(opened.values()) < MAX_PAGES[product.dose]:
        path = queue.pop(0)
        route = re.sub(r"[0-9a-f-]{36}", "{id}", path.partition("?")[0])
        if path in seen or opened.get(route, 0) >= MAX_PAGES_PER_ROUTE[product.dose]:
            continue
        seen.add(path)
        opened[route] = opened.get(route, 0) + 1
        try:
            await tab.page.goto(product.base + path, wait_until="load")
        except Error as error:  # a download is no page
            log.check("Download is starting" in error.message, f"{path}: {error.message[:200]}", path)
            continue
        await tab.check(path)
        links = LINK_PATTERN.findall(await tab.page.content())
        queue += [unescape(each) for each in links if _is_dashboard_page(each)]


def _is_dashboard_page(link: str) -> bool:
    path = link.partition("?")[0]
    return path.startswith("/dashboard/") and "/static/" not in path and "/export" not in path


async def open_user_pages(product: Product, log: AttackLog, context: BrowserContext, mallory: User) -> None:
    """Open every page for users as the user whose objects have hostile texts."""
    paths = await product.list_page_paths()
    log.check(set(product.systems) <= {path.strip("/") for path in paths}, "a system has no page", str(paths))
    for path in paths:
        tab = await open_tab(context, log)
        await tab.page.goto(f"{product.base}{path}#token={make_token(mallory.id)}")
        if path not in PAGES_WITHOUT_CONTENT:
            # Pages show their content when it is loaded. With an open event stream the network is never idle.
            await tab.page.locator("#content").wait_for()
        shown = await tab.page.locator("body").inner_text()
        log.check("hacked" in shown or path in PAGES_WITHOUT_TEXTS, f"{path} does not show the texts", path)
        await tab.check(path)
        scripts = await tab.page.locator("a[href^='javascript' i]").count()
        log.check(scripts == 0, "a script as link", path)
        await tab.page.close()


async def attack_browser(product: Product, log: AttackLog) -> None:
    program = await find_chromium_program()
    if program is None:
        log.check(product.is_short, "Chromium is not installed", "scripts/chromium.sh")
        return
    mallory = await store_hostile_texts(product)
    async with async_playwright() as driver:
        options: dict[str, Any] = {"executable_path": program, "args": CHROMIUM_OPTIONS}
        browser = await driver.chromium.launch(**options)
        context = await browser.new_context()
        context.set_default_timeout(120_000)  # the machine may be busy
        await walk_dashboard(product, log, context)
        await open_user_pages(product, log, context, mallory)
        await browser.close()


ATTACK = Attack("browser", "hostile texts on every page in Chromium (XSS)", attack_browser)

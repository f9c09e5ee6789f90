"""A hostile page in a real Chromium behind the guarded proxy reaches nothing private.

The first test runs the same page without the proxy: it shows that the attempts work and that the canaries
notice them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from chromium import CHROMIUM_OPTIONS, find_chromium
from hostile_page import Canaries, run_canaries, run_hostile_site
from playwright.async_api import Browser, async_playwright
from web_servers import respond, run_web_server

from holdfast.egress import EgressAllowlist, EgressPolicy, GuardedProxy, chromium_arguments
from holdfast.egress.policy import Resolver

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
PAGE_TIMEOUT_MS = 120_000
NAMESPACE_SCRIPT = Path(__file__).parents[1] / "support" / "browser_in_namespace.py"


@asynccontextmanager
async def open_browser(proxy: GuardedProxy | None) -> AsyncGenerator[Browser]:
    options: dict[str, Any] = {"args": CHROMIUM_OPTIONS}
    if proxy is not None:
        options["args"] = [*CHROMIUM_OPTIONS, *chromium_arguments(proxy)]
        options["proxy"] = {
            "server": proxy.server_url,
            "username": proxy.username,
            "password": proxy.password,
        }
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_chromium(), **options)
        try:
            yield browser
        finally:
            await browser.close()


async def visit_hostile_page(browser: Browser, url: str) -> None:
    """Open the page and wait until all its attempts have ended."""
    page = await browser.new_page()
    await page.goto(url, timeout=PAGE_TIMEOUT_MS)
    await page.wait_for_function("document.title === 'done'", timeout=PAGE_TIMEOUT_MS)


def assert_untouched(canaries: Canaries) -> None:
    assert canaries.attempts == set()
    assert (canaries.connections, canaries.datagrams) == (0, [])


def create_rebinding_resolver(site: str) -> Resolver:
    """Return a resolver for which `rebinding.test` is an allowed address first and loopback later."""
    lookups = 0

    async def resolve(host: str) -> list[str]:
        nonlocal lookups
        if host == "rebinding.test":
            lookups += 1
            return [site] if lookups == 1 else ["127.0.0.1"]
        return ["127.0.0.1"]

    return resolve


async def test_without_the_proxy_the_attempts_of_the_page_succeed() -> None:
    async with run_canaries() as canaries, run_hostile_site(canaries) as site, open_browser(None) as browser:
        await visit_hostile_page(browser, site.url)
    expected = {
        "fetch", "image", "script", "css", "iframe", "object", "embed", "video", "audio", "font",
        "css-import", "css-image", "websocket", "event-source", "xhr", "worker", "import-scripts", "form",
        "beacon", "ping", "prefetch", "preload", "redirect", "iframe-redirect", "refresh", "service-worker",
    }  # fmt: skip
    assert expected - canaries.attempts == set()
    assert canaries.datagrams, "WebRTC sent no datagram"


async def test_a_page_behind_the_proxy_reaches_nothing_private() -> None:
    names = ("private.test", "rebinding.test", "mixed.private.test")
    async with run_canaries() as canaries, run_hostile_site(canaries, *names) as site:
        policy = EgressPolicy(
            allowlist=EgressAllowlist.parse(site.authority), resolver=create_rebinding_resolver(site.host)
        )
        async with GuardedProxy(policy) as proxy, open_browser(proxy) as browser:
            await visit_hostile_page(browser, site.url)
        assert_untouched(canaries)
        assert any(request.target.startswith("/service-worker.js") for request in site.requests)
    targets = " ".join(refusal.target for refusal in proxy.refusals)
    for host in ("127.0.0.1", "localhost", "[::1]", "0.0.0.0", "private.test", "rebinding.test"):
        assert f"{host}:{canaries.port}" in targets, f"the proxy saw no request to {host}"
    assert {refusal.method for refusal in proxy.refusals} >= {"GET", "POST", "CONNECT"}


async def test_the_browser_fails_closed_without_the_password() -> None:
    async with run_web_server(respond(b"<title>site</title>"), host="127.0.0.2") as site:
        policy = EgressPolicy(allowlist=EgressAllowlist.parse(site.authority))
        async with GuardedProxy(policy) as proxy, async_playwright() as playwright:
            arguments = [*CHROMIUM_OPTIONS, *chromium_arguments(proxy)]
            browser = await playwright.chromium.launch(executable_path=find_chromium(), args=arguments)
            page = await browser.new_page()
            with pytest.raises(Exception, match=r"ERR_|407"):
                await page.goto(site.url, timeout=PAGE_TIMEOUT_MS)
            await browser.close()
    assert site.connections == 0


async def test_the_browser_fails_closed_when_the_proxy_is_gone() -> None:
    async with run_canaries() as canaries, run_hostile_site(canaries) as site:
        policy = EgressPolicy(allowlist=EgressAllowlist.parse(site.authority))
        async with GuardedProxy(policy) as proxy:
            arguments = chromium_arguments(proxy)
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(
                executable_path=find_chromium(), args=[*CHROMIUM_OPTIONS, *arguments]
            )
            page = await browser.new_page()
            for url in (site.url, f"http://localhost:{canaries.port}/", f"http://[::1]:{canaries.port}/"):
                with pytest.raises(Exception, match="ERR_"):
                    await page.goto(url, timeout=PAGE_TIMEOUT_MS)
            await browser.close()
        assert_untouched(canaries)
        assert site.connections == 0


def test_a_page_on_a_public_address_in_a_private_network_namespace() -> None:
    """The site has a public address there, so no allow-list is needed, and a name server notices lookups."""
    command = ["unshare", "--net", "--mount", "--propagation", "private"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine allows no network namespaces")
    done = subprocess.run(
        [*command, sys.executable, NAMESPACE_SCRIPT, find_chromium()],
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["site_requests"] > 0
    assert (result["connections"], result["datagrams"], result["lookups"]) == (0, 0, [])
    assert result["refusals"] > 10

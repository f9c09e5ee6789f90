"""Run the hostile page in a network namespace of its own and print what the canaries saw, as JSON.

Started by `unshare --net --mount`. The namespace has only loopback, with a public address on it. Its name
server is a canary: Chromium must not look up a name, because names are resolved in the proxy.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from chromium import CHROMIUM_OPTIONS
from hostile_page import run_canaries, run_hostile_site
from playwright.async_api import async_playwright

from holdfast.egress import EgressPolicy, GuardedProxy, chromium_arguments

PUBLIC_ADDRESS = "93.184.216.34"
DNS_PORT = 53


class NameServerCanary(asyncio.DatagramProtocol):
    """A name server that answers nothing and keeps the queries."""

    def __init__(self) -> None:
        self.queries: list[bytes] = []

    def datagram_received(self, data: bytes, addr: object) -> None:
        self.queries.append(data)


def set_up_network() -> None:
    for command in (
        ["ip", "link", "set", "lo", "up"],
        ["ip", "address", "add", f"{PUBLIC_ADDRESS}/32", "dev", "lo"],
    ):
        subprocess.run(command, check=True)
    with tempfile.NamedTemporaryFile("w", delete=False) as file:
        file.write("nameserver 127.0.0.1\n")
    subprocess.run(["mount", "--bind", file.name, str(Path("/etc/resolv.conf").resolve())], check=True)


async def resolve(host: str) -> list[str]:
    return [PUBLIC_ADDRESS] if host == "site.test" else ["127.0.0.1"]


async def main(chromium: str) -> None:
    loop = asyncio.get_running_loop()
    _, name_server = await loop.create_datagram_endpoint(NameServerCanary, local_addr=("127.0.0.1", DNS_PORT))
    async with (
        run_canaries() as canaries,
        run_hostile_site(canaries, "private.test", host=PUBLIC_ADDRESS, port=80) as site,
        GuardedProxy(EgressPolicy(resolver=resolve)) as proxy,
    ):
        await visit(chromium, proxy)
    result = {
        "site_requests": len(site.requests),
        "connections": canaries.connections,
        "datagrams": len(canaries.datagrams),
        "lookups": [repr(query) for query in name_server.queries],
        "refusals": len(proxy.refusals),
    }
    sys.stdout.write(json.dumps(result) + "\n")


async def visit(chromium: str, proxy: GuardedProxy) -> None:
    credentials = {"server": proxy.server_url, "username": proxy.username, "password": proxy.password}
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium,
            args=[*CHROMIUM_OPTIONS, *chromium_arguments(proxy)],
            proxy=credentials,  # type: ignore[arg-type]
        )
        page = await browser.new_page()
        await page.goto("http://site.test/", timeout=120_000)
        await page.wait_for_function("document.title === 'done'", timeout=120_000)
        await browser.close()


if __name__ == "__main__":
    set_up_network()
    asyncio.run(main(sys.argv[1]))

"""Reach URLs that users chose: the guarded client in tasks, and other programs behind the guarded proxy."""

import asyncio
import os
import re
from dataclasses import replace

from playwright.async_api import async_playwright

from holdfast import Artifact, Client, Ctx, Reject, task
from holdfast.egress import EgressClient, EgressError, EgressPolicy, GuardedProxy, chromium_arguments

client = Client()


@task(queue="web", retries=3)
async def fetch_title(url: str) -> str:
    try:
        async with EgressClient() as web:
            response = await web.get(url, headers={"Accept": "text/html"})
    except EgressError as error:
        if error.retryable:
            raise
        raise Reject(error.message) from error
    title = re.search(rb"<title>(.*?)</title>", response.body)
    return title[1].decode() if title else ""


@task(queue="web", retries=3)
async def save_image(ctx: Ctx, url: str) -> Artifact:
    policy = replace(
        EgressPolicy.from_settings(), content_types=frozenset({"image/*"}), max_response_bytes=10_000_000
    )
    async with EgressClient(policy) as web, web.stream("GET", url) as response:
        return await ctx.save("image", response.iterate_bytes(), response.content_type)


@task(queue="web", retries=3)
async def run_curl(url: str) -> str:
    async with GuardedProxy() as proxy:
        process = await asyncio.create_subprocess_exec(
            "curl", "--silent", "--", url,
            stdout=asyncio.subprocess.PIPE, env={**os.environ, **proxy.environment},
        )  # fmt: skip
        output, _ = await process.communicate()
        if proxy.refusals:
            raise Reject(proxy.refusals[0].reason)
    return output.decode()


async def take_screenshot(url: str) -> bytes:
    async with GuardedProxy() as proxy, async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path="/usr/bin/chromium",
            args=chromium_arguments(proxy),
            proxy={"server": proxy.server_url, "username": proxy.username, "password": proxy.password},
        )
        page = await browser.new_page()
        await page.goto(url)
        return await page.screenshot()

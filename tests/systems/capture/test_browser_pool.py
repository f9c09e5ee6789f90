"""The browser pool: isolation, limits, crashes, and its end with the worker."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from page_site import PageSite

from holdfast.systems.capture import (
    BrowserCrashedError,
    BrowserOptions,
    BrowserPool,
    BrowserStartError,
    CaptureError,
)
from holdfast.systems.capture.chromium_launcher import find_descendants
from holdfast.testing import wait_until


def read_command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def find_browser_process(pool: BrowserPool) -> int:
    """Return the main process of Chromium, the first child of the launcher."""
    (launcher,) = pool.browser_pids
    return next(pid for pid in find_descendants(launcher) if "--remote-debugging-pipe" in read_command(pid))


async def load(pool: BrowserPool, url: str, script: str = "() => document.title") -> object:
    async with pool.open_page() as page:
        assert await page.navigate(url) is None
        await page.wait_until_loaded(60)
        return await page.run_script(script)


async def test_each_page_has_a_context_of_its_own(site: PageSite, browsers: BrowserPool) -> None:
    url = site.add("/", "<title>Cookies</title><script>document.cookie = 'seen=1; path=/'</script>")
    assert await load(browsers, url, "() => document.cookie") == "seen=1"
    assert await load(browsers, url, "() => document.cookie") == "seen=1"
    # The second page did not send the cookie of the first.
    requests = [request for request in site.server.requests if request.target == "/"]
    assert len(requests) == 2
    assert not any("cookie" in request.headers for request in requests)
    assert all("Headless" not in request.headers["user-agent"] for request in requests)


async def test_chromium_runs_in_its_sandbox_as_another_user_than_root(
    site: PageSite, browsers: BrowserPool
) -> None:
    url = site.add("/", "<title>Sandbox</title>")
    async with browsers.open_page() as page:
        await page.navigate(url)
        (launcher,) = browsers.browser_pids
        pids = find_descendants(launcher)
        assert len(pids) > 3
        for pid in pids:
            assert "--no-sandbox" not in read_command(pid)
            status = Path(f"/proc/{pid}/status").read_text()
            assert "\nUid:\t0\t" not in status
            assert "DATABASE_URL" not in Path(f"/proc/{pid}/environ").read_text(errors="replace")
        renderers = [pid for pid in pids if "--type=renderer" in read_command(pid)]
        # A renderer in the sandbox has system call filters and no rights.
        assert renderers
        for pid in renderers:
            status = Path(f"/proc/{pid}/status").read_text()
            assert "\nSeccomp:\t2\n" in status
            assert "\nNoNewPrivs:\t1\n" in status


async def test_pages_reach_only_what_the_policy_allows(site: PageSite, browsers: BrowserPool) -> None:
    """Requests of a page to other ports of loopback end in the proxy."""
    seen: list[bytes] = []

    async def record(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.read(1000))
        writer.close()

    canary = await asyncio.start_server(record, "127.0.0.1", 0)
    port = canary.sockets[0].getsockname()[1]
    url = site.add(
        "/",
        f"""<title>Curious</title><img src="http://127.0.0.1:{port}/img"><iframe src="http://localhost:{port}/"></iframe>
        <img src="http://[::1]:{port}/"><img src="file:///etc/passwd">
        <script>fetch("http://127.0.0.1:{port}/fetch").catch(() => 0); new WebSocket("ws://127.0.0.1:{port}/ws");
        navigator.sendBeacon("http://127.0.0.1:{port}/beacon")</script>""",
    )
    try:
        async with browsers.open_page() as page:
            await page.navigate(url)
            await page.wait_until_loaded(60)
            await wait_until(lambda: len(page.proxy.refusals) >= 3)
    finally:
        canary.close()
    assert seen == []


async def test_the_browser_is_replaced_after_its_pages(site: PageSite, options: BrowserOptions) -> None:
    url = site.add("/", "<title>Page</title>")
    async with BrowserPool(site.policy, replace(options, pages_per_browser=2)) as pool:
        launchers = []
        for _ in range(3):
            async with pool.open_page() as page:
                assert await page.navigate(url) is None
                launchers.append(pool.browser_pids[-1])
        assert launchers[0] == launchers[1] != launchers[2]
        assert launchers[0] not in pool.browser_pids
        assert not Path(f"/proc/{launchers[0]}").exists()


@pytest.mark.long
async def test_a_killed_browser_fails_its_page_and_the_next_page_works(
    site: PageSite, browsers: BrowserPool
) -> None:
    url = site.add("/", "<title>Alive</title>")
    with pytest.raises(BrowserCrashedError) as caught:  # noqa: PT012
        async with browsers.open_page() as page:
            await page.navigate(url)
            os.kill(find_browser_process(browsers), signal.SIGKILL)
            await page.run_script("() => new Promise(() => 0)")
    assert caught.value.retry
    assert await load(browsers, url) == "Alive"


@pytest.mark.long
async def test_a_browser_that_was_killed_between_pages_is_replaced(
    site: PageSite, browsers: BrowserPool
) -> None:
    url = site.add("/", "<title>Alive</title>")
    os.kill(find_browser_process(browsers), signal.SIGKILL)
    assert await load(browsers, url) == "Alive"


@pytest.mark.long
async def test_a_frozen_browser_is_killed_and_the_next_page_works(
    site: PageSite, browsers: BrowserPool
) -> None:
    url = site.add("/", "<title>Alive</title>")
    frozen = find_browser_process(browsers)
    with pytest.raises(TimeoutError):  # noqa: PT012
        async with browsers.open_page() as page:
            os.kill(frozen, signal.SIGSTOP)
            async with asyncio.timeout(1):
                await page.navigate(url)
    assert await load(browsers, url) == "Alive"
    assert not Path(f"/proc/{frozen}").exists()


@pytest.mark.long
async def test_a_browser_that_froze_between_pages_is_replaced(site: PageSite, browsers: BrowserPool) -> None:
    url = site.add("/", "<title>Alive</title>")
    os.kill(find_browser_process(browsers), signal.SIGSTOP)
    assert await load(browsers, url) == "Alive"


@pytest.mark.long
async def test_a_crashed_page_does_not_end_the_browser(site: PageSite, browsers: BrowserPool) -> None:
    url = site.add("/", "<title>Alive</title>")
    (launcher,) = browsers.browser_pids
    with pytest.raises(BrowserCrashedError):  # noqa: PT012
        async with browsers.open_page() as page:
            await page.navigate("chrome://crash")
            await page.run_script("() => 1")
    assert await load(browsers, url) == "Alive"
    assert browsers.browser_pids == (launcher,)


@pytest.mark.long
async def test_a_page_that_fills_the_memory_ends_its_browser_only(
    site: PageSite, options: BrowserOptions
) -> None:
    greedy = site.add(
        "/greedy",
        "<script>const kept = []; setInterval(() => { for (let i = 0; i < 20; i++)"
        " kept.push(new Uint8Array(10000000).fill(1)) }, 10)</script>",
    )
    url = site.add("/", "<title>Alive</title>")
    async with BrowserPool(site.policy, replace(options, max_memory_bytes=900_000_000)) as pool:
        with pytest.raises(CaptureError):  # noqa: PT012
            async with pool.open_page() as page:
                await page.navigate(greedy)
                await page.run_script("() => new Promise(() => 0)")
        assert await load(pool, url) == "Alive"


@pytest.mark.long
async def test_a_browser_with_too_many_processes_ends(site: PageSite, options: BrowserOptions) -> None:
    async with BrowserPool(site.policy, options) as pool:
        (launcher,) = pool.browser_pids
        count = len(find_descendants(launcher))
    with pytest.raises((CaptureError, BrowserStartError)) as caught:
        async with (
            BrowserPool(site.policy, replace(options, max_processes=count // 2)) as pool,
            pool.open_page() as page,
        ):
            await page.run_script("() => new Promise(() => 0)")
    assert isinstance(caught.value, CaptureError | BrowserStartError)


WORKER_PROGRAM = """
    import asyncio, sys
    from holdfast.egress import EgressPolicy
    from holdfast.systems.capture import BrowserPool, MediaDecoder

    async def main():
        async with BrowserPool(EgressPolicy()) as pool, MediaDecoder() as decoder, pool.open_page():
            try:
                await decoder.decode_image(b"x")
            except Exception:
                pass
            print(*pool.browser_pids, *decoder.pids, flush=True)
            await asyncio.Event().wait()

    asyncio.run(main())
"""


@pytest.mark.long
@pytest.mark.parametrize("frozen", [False, True], ids=["running", "frozen"])
async def test_nothing_is_left_of_the_browser_of_a_killed_worker(
    frozen: bool, options: BrowserOptions
) -> None:
    """Also if Chromium hangs and cannot notice that its worker is gone."""
    worker = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WORKER_PROGRAM)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert worker.stdout is not None
        launcher, decoder = map(int, (await asyncio.to_thread(worker.stdout.readline)).split())
        pids = [launcher, decoder, *find_descendants(launcher)]
        profile = read_command(launcher).partition("profile=")[2].split()[0]
        assert len(pids) > 5
        if frozen:
            for pid in pids[2:]:
                os.kill(pid, signal.SIGSTOP)
    finally:
        worker.kill()
        worker.communicate()
    await wait_until(lambda: not any(read_command(pid) for pid in pids), within=timedelta(seconds=60))
    await wait_until(lambda: not Path(profile).exists(), within=timedelta(seconds=60))


async def test_a_cancelled_task_closes_its_page(site: PageSite, browsers: BrowserPool) -> None:
    url = site.add("/", "<title>Alive</title>")
    opened = asyncio.Event()

    async def hold_page() -> None:
        async with browsers.open_page() as page:
            await page.navigate(url)
            opened.set()
            await asyncio.Event().wait()

    holders = [asyncio.create_task(hold_page()) for _ in range(browsers.options.max_open_pages)]
    await opened.wait()
    for holder in holders:
        holder.cancel()
    await asyncio.gather(*holders, return_exceptions=True)
    assert await load(browsers, url) == "Alive"


async def test_a_missing_chromium_is_one_sentence(site: PageSite) -> None:
    pool = BrowserPool(site.policy, BrowserOptions(chromium=Path("/nonexistent/chromium")))
    with pytest.raises(BrowserStartError, match="HOLDFAST_CHROMIUM"):
        await pool.__aenter__()


async def test_a_program_that_is_no_chromium_is_an_error_at_start(site: PageSite) -> None:
    pool = BrowserPool(site.policy, BrowserOptions(chromium=Path("/bin/false")))
    with pytest.raises(BrowserStartError, match="did not start"):
        await pool.__aenter__()
    assert pool.browser_pids == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root chooses another user")
@pytest.mark.parametrize(
    ("user", "message"), [("root", "must not run as root"), ("nosuch", "does not exist")]
)
async def test_chromium_never_runs_as_root(site: PageSite, user: str, message: str) -> None:
    pool = BrowserPool(site.policy, BrowserOptions(user=user))
    with pytest.raises(BrowserStartError, match=message):
        await pool.__aenter__()

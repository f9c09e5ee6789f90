"""The dashboard: every page and action with every role, and forms that another site sends (CSRF).

Forms are found in two ways: in the registry of the dashboard, and by walking the pages, those of systems
included.
"""

from __future__ import annotations

import asyncio
import re
import time
from html import unescape
from uuid import uuid4

import httpx

from attack.attacks.attack import Attack
from attack.findings import AttackLog
from attack.identities import User, create_key, sign_in_to_dashboard
from attack.population import compute_digest
from attack.target import Product
from holdfast.engine import access
from holdfast.server.dashboard import pages
from holdfast.server.dashboard.registry import ACTION_ROUTES, DOWNLOAD_ROUTES, PAGE_ROUTES
from holdfast.server.dashboard.roles import PERMISSIONS_BY_ROLE

SAME_ORIGIN = {"sec-fetch-site": "same-origin"}
FORM_PATTERN = re.compile(r"<form\b([^>]*)>(.*?)</form>", re.DOTALL)
LINK_PATTERN = re.compile(r'href="([^"#]+)"')
TOKEN_PATTERN = re.compile(r'name="token" value="([^"]+)"')
OPEN_FORMS = {"/login", "/logout"}  # without a token: the login has no session, and both check the origin
MAX_SESSION_END_S = 5  # a second is promised; the machine may be busy
MAX_WALKED_PAGES = {"short": 30, "full": 600}


def fill_path(path: str, user: User) -> str:
    """Replace the parameters of a path by ids of a user."""
    kinds = {"/files": "artifact", "/batches": "batch", "/webhooks": "webhook", "/bulk": "job"}
    kind = next((kind for start, kind in kinds.items() if path.startswith(start)), "waiting_job")
    return re.sub(r"{[^}]+}", user.ids[kind], path)


async def attack_pages(product: Product, log: AttackLog) -> None:
    """Open every page and download with every role, and without a session."""
    pages.register_pages()
    ann = product.users["ann"]
    routes = {**PAGE_ROUTES, **DOWNLOAD_ROUTES}
    async with httpx.AsyncClient(base_url=f"{product.base}/dashboard", timeout=60) as stranger:
        for path in routes:
            for cookie in ("", "holdfast_session=x.y", "holdfast_session=" + "A" * 5000):
                response = await stranger.get(fill_path(path, ann), headers={"cookie": cookie})
                log.check_response(response.status_code == 303, response, "nobody", "expected the login page")
                log.check_response(ann.marker not in response.text, response, "nobody", "shows data of ann")
    for role, permissions in PERMISSIONS_BY_ROLE.items():
        client = await sign_in_to_dashboard(product.connection, product.base, role)
        for path, route in routes.items():
            response = await client.get(fill_path(path, ann))
            allowed = route.permission in permissions
            log.check_response(response.status_code < 500, response, role, "server error")
            passed = (response.status_code == 403) != allowed
            log.check_response(passed, response, role, f"the page needs {route.permission}")
            if not allowed:
                log.check_response(ann.marker not in response.text, response, role, "shows data of ann")
        await client.aclose()


async def read_form_token(client: httpx.AsyncClient) -> str:
    match = TOKEN_PATTERN.search((await client.get("/settings")).text)
    assert match is not None, "the settings page has no form token"
    return unescape(match[1])


async def attack_actions(product: Product, log: AttackLog) -> None:
    """Send every action as another site, with a wrong token, and with a role that may not do it."""
    ann = product.users["ann"]
    admin = await sign_in_to_dashboard(product.connection, product.base, "admin")
    other = await sign_in_to_dashboard(product.connection, product.base, "admin")
    token, other_token = await read_form_token(admin), await read_form_token(other)
    before = await compute_digest(product, ann)
    attempts: dict[str, tuple[dict[str, str], dict[str, str]]] = {
        "no token": ({}, SAME_ORIGIN),
        "empty token": ({"token": ""}, SAME_ORIGIN),
        "wrong token": ({"token": str(uuid4())}, SAME_ORIGIN),
        "token of another session": ({"token": other_token}, SAME_ORIGIN),
        "another site": ({"token": token}, {"sec-fetch-site": "cross-site"}),
        "another subdomain": ({"token": token}, {"sec-fetch-site": "same-site"}),
        "another origin": ({"token": token}, {"origin": "https://attack.invalid"}),
        "origin null": ({"token": token}, {"origin": "null"}),
    }
    for path in ACTION_ROUTES:
        for name, (form, headers) in attempts.items():
            response = await admin.post(fill_path(path, ann), data=form, headers=headers)
            log.check_response(response.status_code == 403, response, f"form, {name}", "expected 403")
        fetched = await admin.get(f"{fill_path(path, ann)}?token={token}", headers=SAME_ORIGIN)
        log.check_response(fetched.status_code < 500, fetched, "form as link", "server error")
    await attack_with_roles(product, log)
    changed = {t for t, digest in (await compute_digest(product, ann)).items() if digest != before[t]}
    log.check(not changed, f"a refused form changed rows of ann: {changed}", "--only dashboard")
    for path in OPEN_FORMS:
        response = await other.post(path, data={"key": "x"}, headers={"sec-fetch-site": "cross-site"})
        log.check_response(response.status_code == 403, response, "form, another site", "expected 403")
    many = "&".join(f"f{number}=1" for number in range(5001))
    form_type = {"content-type": "application/x-www-form-urlencoded", **SAME_ORIGIN}
    response = await httpx.AsyncClient().post(
        f"{product.base}/dashboard/login", content=many, headers=form_type
    )
    log.check_response(response.status_code < 500, response, "nobody", "5,001 fields are a server error")
    await admin.aclose()
    await other.aclose()


async def attack_with_roles(product: Product, log: AttackLog) -> None:
    """Send every action with a valid token of a role that has no permission for it."""
    ann = product.users["ann"]
    for role, permissions in PERMISSIONS_BY_ROLE.items():
        client = await sign_in_to_dashboard(product.connection, product.base, role)
        form = {"token": await read_form_token(client)}
        for path, route in ACTION_ROUTES.items():
            if route.permission not in permissions:
                response = await client.post(fill_path(path, ann), data=form, headers=SAME_ORIGIN)
                problem = f"the action needs {route.permission}"
                log.check_response(response.status_code == 403, response, role, problem)
        await client.aclose()


async def attack_ended_sessions(product: Product, log: AttackLog) -> None:
    """Use a session after logout and after its key was revoked, as somebody who copied the cookie."""
    client = await sign_in_to_dashboard(product.connection, product.base, "viewer")
    stolen = dict(client.cookies)
    await client.post("/logout", data={"token": await read_form_token(client)}, headers=SAME_ORIGIN)
    await check_session_has_ended(product, log, stolen, "logout")
    key = await create_key(product.connection, "dashboard:viewer")
    async with httpx.AsyncClient(base_url=f"{product.base}/dashboard", timeout=60) as browser:
        response = await browser.post("/login", data={"key": key, "next": "/"}, headers=SAME_ORIGIN)
        log.check_response(response.status_code == 303, response, "key", "a key with a role signs in")
        await access.revoke_service_key(product.connection, key[:11])
        await check_session_has_ended(product, log, dict(browser.cookies), "the revocation of its key")
    await client.aclose()


async def check_session_has_ended(
    product: Product, log: AttackLog, cookies: dict[str, str], event: str
) -> None:
    async with httpx.AsyncClient(base_url=f"{product.base}/dashboard", cookies=cookies, timeout=60) as thief:
        deadline = time.monotonic() + MAX_SESSION_END_S
        response = await thief.get("/jobs")
        while response.status_code == 200 and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
            response = await thief.get("/jobs")
    log.check_response(response.status_code == 303, response, "stolen cookie", f"outlives {event}")


async def walk_forms(product: Product, log: AttackLog) -> None:
    """Walk the pages, and check that every form that changes something is attacked and has a token."""
    client = await sign_in_to_dashboard(product.connection, product.base, "admin")
    known = [re.compile(re.sub(r"{[^}]+}", "[^/]+", path) + "$") for path in ACTION_ROUTES]
    queue, seen, forms = ["/dashboard/"], set[str](), dict[str, str]()
    while queue and len(seen) < MAX_WALKED_PAGES[product.dose]:
        path = queue.pop(0)
        if path in seen:
            continue
        seen.add(path)
        response = await client.get(f"{product.base}{path}", follow_redirects=True)
        log.check_response(response.status_code < 500, response, "admin", "server error")
        if not response.headers.get("content-type", "").startswith("text/html"):
            continue
        queue += [unescape(link) for link in LINK_PATTERN.findall(response.text) if _is_page(link)]
        for attributes, content in FORM_PATTERN.findall(response.text):
            target = re.search(r'action="([^"]+)"', attributes)
            if 'method="post"' in attributes and target is not None:
                forms[unescape(target[1]).removeprefix("/dashboard").partition("?")[0]] = content
    for action, content in forms.items():
        if action not in OPEN_FORMS:
            attacked = any(pattern.match(action) for pattern in known)
            log.check(attacked, f"the form {action} is not in the registry", f"walk to {action}", "walk")
            log.check('name="token"' in content, f"the form {action} has no token", f"walk to {action}")
    log.check(len(forms) > 3, "the walk found no forms", "--only dashboard")
    for path in await product.list_page_paths():
        page = (await product.http.get(path)).text
        posts = [attributes for attributes, _ in FORM_PATTERN.findall(page) if 'method="post"' in attributes]
        log.check(not posts, f"the page {path} has a form that a cookie could authorize: {posts}")
    await client.aclose()


def _is_page(link: str) -> bool:
    path = link.partition("?")[0]
    return path.startswith("/dashboard/") and "/static/" not in path and not path.endswith("/in")


async def attack_dashboard(product: Product, log: AttackLog) -> None:
    await attack_pages(product, log)
    await attack_actions(product, log)
    await attack_ended_sessions(product, log)
    await walk_forms(product, log)


ATTACK = Attack("dashboard", "pages and actions x roles, and CSRF on every form", attack_dashboard)

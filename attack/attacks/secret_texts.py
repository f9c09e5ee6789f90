"""Secrets of arguments in errors, logs and progress: on every page, stream and route of others.

One secret is in a field that is named like one, the other in a field that only the schema of its task marks.
"""

from __future__ import annotations

from html import unescape
from uuid import uuid4

import httpx

from attack.attacks.attack import Attack
from attack.attacks.dashboard import LINK_PATTERN
from attack.attacks.route_access import list_all_targets
from attack.findings import AttackLog
from attack.identities import create_invalid_identities, sign_in_to_dashboard
from attack.target import Product
from holdfast.server.dashboard.roles import PERMISSIONS_BY_ROLE

MAX_PAGES = {"short": 40, "full": 400}
TABS = ("attempts", "logs", "payload", "events", "tasks")


async def attack_secrets(product: Product, log: AttackLog) -> None:
    secrets = {"api_token": f"named-{uuid4()}", "nickname": f"marked-{uuid4()}"}
    body = {"type": "spill_secrets", "queue": "planted", "args": secrets}
    created = await product.http.post("/api/jobs", json=body, headers=product.service)
    job = created.json()["id"]
    await product.wait_for_job(job, "failed")
    await attack_pages(product, log, job, list(secrets.values()))
    await attack_routes(product, log, job, list(secrets.values()))


def check_text(log: AttackLog, text: str, secrets: list[str], who: str, path: str) -> None:
    found = [secret.partition("-")[0] for secret in secrets if secret in unescape(text)]
    log.check(not found, f"{path} shows a secret: {found}", f"GET {path}", who)


async def attack_pages(product: Product, log: AttackLog, job: str, secrets: list[str]) -> None:
    """Walk the pages and live updates with every role. A role with the right must find the secrets."""
    for role, permissions in PERMISSIONS_BY_ROLE.items():
        client = await sign_in_to_dashboard(product.connection, product.base, role)
        texts = await walk_pages(product, client, job)
        if "payload.secret" in permissions:
            found = sum(all(secret in unescape(text) for secret in secrets) for text in texts.values())
            log.check(found >= 3, "the walk finds no secrets where they are shown", "--only secrets", role)
        else:
            for path, text in texts.items():
                check_text(log, text, secrets, role, path)
        await client.aclose()


async def walk_pages(product: Product, client: httpx.AsyncClient, job: str) -> dict[str, str]:
    paths = [*(f"/dashboard/jobs/{job}?tab={tab}" for tab in TABS), "/dashboard/errors", "/dashboard/jobs"]
    paths += ["/dashboard/jobs/export?format=csv", "/dashboard/jobs/export?format=jsonl", "/dashboard/"]
    texts: dict[str, str] = {}
    while paths and len(texts) < MAX_PAGES[product.dose]:
        path = paths.pop(0)
        if path in texts:
            continue
        response = await client.get(f"{product.base}{path}")
        texts[path] = response.text
        links = [unescape(link) for link in LINK_PATTERN.findall(response.text)]
        paths += [link for link in links if link.startswith("/dashboard/") and "/static/" not in link]
    cookies = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    for path in ("/", "/errors", "/jobs", f"/jobs/{job}"):
        live = await product.send("GET", "/dashboard/live", {"cookie": cookies}, params={"path": path})
        texts[f"live {path}"] = live.text
    return texts


async def attack_routes(product: Product, log: AttackLog, job: str, secrets: list[str]) -> None:
    """Read every route as another user and without a valid credential, with the ids of the job."""
    bob = product.users["bob"]
    callers = {"user": bob.headers}
    for identity in await create_invalid_identities(product.connection, product.base, bob):
        callers[identity.name] = identity.headers
    for target in await list_all_targets(product):
        if target.method != "get":
            continue
        path = target.address({"id": job, "task": job})
        for who, headers in callers.items():
            response = await product.send("GET", path, headers)
            check_text(log, response.text, secrets, who, path)


ATTACK = Attack(
    "secrets",
    "secrets in errors, logs and progress x everybody else",
    attack_secrets,
    in_short_dose=False,  # it walks all pages with every role, more than a minute
)

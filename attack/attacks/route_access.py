"""Every route of the OpenAPI document called by every identity.

The document says who may call a route: `security`, `x-access` (user or service) and `x-scope`. A caller
without the right gets 401 or 403. The objects of another user look exactly like missing ones, and nothing of
them is in any body. No caller gets a 5xx, and what ann owns is the same before and after.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx
from api_targets import PATH_PARAMETER_VALUES, ApiTarget, mask_requested_ids

from attack.attacks.attack import Attack
from attack.findings import AttackLog
from attack.identities import Identity, User, create_invalid_identities, create_key_identities
from attack.population import compute_digest, find_marker, plant_user
from attack.target import ROOT, Product
from holdfast.server.api.app import build_openapi_document

MAX_PARALLEL_REQUESTS = 8
# The kind of object whose id a path has, by the beginning of the path. Other paths are tried with every kind.
ID_KIND_BY_PATH = {
    "/api/v1/export/batch/": "export_batch",
    "/api/v1/export/job/": "export_job",
    "/api/v1/export/history/": "history",
    "/api/v1/export/download/": "history",
    "/api/v1/export/preview/": "document",
    "/api/jobs/": "job",
    "/api/tasks/": "task",
    "/api/batches/": "batch",
    "/api/artifacts/": "artifact",
    "/api/webhooks/": "webhook",
}
# Inbound webhooks check a signature instead of a token. Their own attacks are in the API's tests.
# The path or the header proves the caller. An invalid token beside it is refused all the same.
SIGNED_OPERATIONS = {"post_hooks_name", "put_report_uploads_secret"}
# The database decides per function or per job type whether a user may call these.
DECIDED_BY_DATABASE = {"post_jobs", "post_v1_rpc_function", "get_v1_rpc_function"}
INVALID_IDENTITIES_IN_SHORT_DOSE = {"anonymous", "expired token", "revoked key", "dashboard admin"}
DECIDED_ELSEWHERE = DECIDED_BY_DATABASE | SIGNED_OPERATIONS
INTERNALS = re.compile(r"Traceback \(most recent|attack/app\.py|site-packages|" + re.escape(str(ROOT)))


@dataclass
class RouteAttack:
    """The routes, the identities, and the users whose objects are attacked."""

    product: Product
    log: AttackLog
    targets: list[ApiTarget]
    built_in_tags: frozenset[str]

    async def attack_without_credential(self, victim: User) -> None:
        identities = await create_invalid_identities(self.product.connection, self.product.base, victim)
        if self.product.is_short:
            identities = [each for each in identities if each.name in INVALID_IDENTITIES_IN_SHORT_DOSE]

        async def attempt(target: ApiTarget, identity: Identity) -> None:
            response = await self.send(target, identity.headers, victim, get_matching_kind(target))
            self.check_answer(response, identity.name, victim)
            if "security" in target.operation and target.name not in SIGNED_OPERATIONS:
                passed = response.status_code == 401
                self.log.check_response(passed, response, identity.name, "expected 401")
            elif target.name not in SIGNED_OPERATIONS:
                passed = response.status_code not in (401, 403)
                self.log.check_response(passed, response, identity.name, "the route is public")

        await run_in_parallel(attempt(target, each) for target in self.targets for each in identities)

    async def attack_as_other_user(self, victim: User, attacker: User) -> None:
        """Call every route with every id of the victim, and compare with an id that does not exist."""

        async def attempt(target: ApiTarget, kind: str) -> None:
            foreign = await self.send(target, attacker.headers, victim, kind)
            self.check_answer(foreign, "other user", victim)
            if target.operation.get("x-access") == "service":
                passed = foreign.status_code == 403
                self.log.check_response(passed, foreign, "other user", "expected 403")
                return
            if "{" not in target.path:
                return
            missing_user = User(
                "nobody", ids={each: create_missing_id(victim.ids[each]) for each in victim.ids}
            )
            missing_user.names = {each: f"missing {each}" for each in victim.names}
            missing = await self.send(target, attacker.headers, missing_user, kind)
            same = foreign.status_code == missing.status_code and mask_ids(foreign, victim) == mask_ids(
                missing, missing_user
            )
            self.log.check_response(
                same,
                foreign,
                "other user",
                f"differs from a missing one ({missing.status_code} {missing.text[:200]})",
            )

        def list_kinds(target: ApiTarget) -> Iterable[str]:
            if "{id}" not in target.path and "{task}" not in target.path:
                return ["job"]
            return victim.ids if not self.product.is_short else list_plausible_kinds(target, victim)

        await run_in_parallel(attempt(target, kind) for target in self.targets for kind in list_kinds(target))
        await run_in_parallel(self.attack_lists(target, victim, attacker) for target in self.targets)

    async def attack_lists(self, target: ApiTarget, victim: User, attacker: User) -> None:
        """Ask a list for the objects of the victim with each of its query parameters."""
        if target.method != "get" or "{" in target.path:
            return
        values = [victim.id, victim.marker, victim.ids["job"], f"owner:{victim.id}", f"label:{victim.marker}"]
        for parameter in target.operation.get("parameters", ()):
            if parameter["in"] != "query":
                continue
            for value in values:
                response = await self.product.send(
                    "GET", target.path, attacker.headers, params={parameter["name"]: value}
                )
                self.check_answer(response, "other user", victim, sent=value)

    async def attack_with_keys(self, victim: User) -> None:
        """Call every route with a key of each scope: the others are refused, the right one is let in."""
        keys = await create_key_identities(self.product.connection)

        async def attempt(target: ApiTarget) -> None:
            scope = target.operation.get("x-scope")
            for key in sorted(keys, key=lambda key: scope in key.scopes):
                response = await self.send(target, {**key.headers, **self.get_user(target, victim)}, victim)
                self.log.check_response(response.status_code < 500, response, key.name, "server error")
                if "security" not in target.operation:
                    continue
                refused = response.status_code in (401, 403)
                allowed = scope in key.scopes
                if not allowed:
                    self.check_answer(response, key.name, victim)
                if not allowed or target.name not in DECIDED_BY_DATABASE:
                    self.log.check_response(refused != allowed, response, key.name, f"it needs {scope}")

        for target in sorted(self.targets, key=is_destructive):
            await attempt(target)

    async def attack_as_owner(self, owner: User) -> None:
        """Call every route as the owner: no internals of workers and code, and no route of services."""
        for target in sorted(self.targets, key=is_destructive):
            response = await self.send(target, owner.headers, owner, get_matching_kind(target))
            self.log.check_response(response.status_code < 500, response, "owner", "server error")
            internals = INTERNALS.search(response.text)
            self.log.check_response(internals is None, response, "owner", f"shows internals: {internals}")
            if target.operation.get("x-access") == "service":
                self.log.check_response(response.status_code == 403, response, "owner", "expected 403")
            elif "security" in target.operation and target.name not in DECIDED_ELSEWHERE:
                allowed = response.status_code not in (401, 403) or target.path == "/api/v1/export/cleanup"
                self.log.check_response(allowed, response, "owner", "the owner may call it")

    def get_user(self, target: ApiTarget, user: User) -> dict[str, str]:
        """Return the header in which services name a user, for the routes of systems."""
        is_system = not self.built_in_tags.intersection(target.operation["tags"])
        return {"x-user-id": user.id} if is_system else {}

    async def send(
        self, target: ApiTarget, headers: dict[str, str], user: User, kind: str | None = None
    ) -> httpx.Response:
        kind = kind or get_matching_kind(target)
        object_id = user.ids.get(kind or "job", user.ids["job"])
        values = {**PATH_PARAMETER_VALUES, "id": object_id, "task": object_id, "signed": "x", "secret": "x"}
        values["name"] = user.names.get("schedule", "n") if "/schedules/" in target.path else "n"
        body = build_body(target, user)
        options = {"json": body} if body is not None else {}
        return await self.product.send(
            target.method.upper(), target.path.format(**values), headers, **options
        )

    def check_answer(self, response: httpx.Response, who: str, victim: User, sent: str | None = None) -> None:
        """Check that an answer to somebody else is no server error and has nothing of the victim."""
        self.log.check_response(response.status_code < 500, response, who, "server error")
        text = response.text.replace(sent, "") if sent else response.text
        leaked = find_marker(victim, response) if victim.marker in text else None
        request_path = str(response.request.url)
        known = victim.marker in request_path or (sent is not None and victim.marker in sent)
        self.log.check_response(leaked is None or known, response, who, f"shows data of ann: {leaked}")


def build_body(target: ApiTarget, user: User) -> Any:
    """Return a valid body. Fields that name an object get an id of the user."""
    body = target.body()
    if not isinstance(body, dict):
        return body
    if target.name == "post_jobs_start":
        return {"type": "planted", "params": {"text": "text"}}
    if target.name.startswith("post_v1_export"):
        document = user.ids.get("document")
        return {"documentIds": [document]} if "batch" in target.path else {"documentId": document}
    return body


def get_matching_kind(target: ApiTarget) -> str | None:
    for beginning, kind in ID_KIND_BY_PATH.items():
        if target.path.startswith(beginning):
            return kind
    return None


def list_plausible_kinds(target: ApiTarget, victim: User) -> list[str]:
    """Return the kinds of ids that fit a path, or all kinds if the path is not known."""
    kind = get_matching_kind(target)
    return [each for each in victim.ids if kind is None or each == kind or each.endswith(f"_{kind}")]


def is_destructive(target: ApiTarget) -> tuple[bool, bool]:
    return target.method == "delete", target.method != "get"


def create_missing_id(known_id: str) -> str:
    """Return an id that nobody has, of the same form as a known one."""
    return str(int(known_id) + 1_000_000) if known_id.isdigit() else str(uuid4())


def mask_ids(response: httpx.Response, user: User) -> str:
    """Return the text of a response without the ids and names that the caller sent."""
    known = {**user.ids, **{f"name {key}": value for key, value in user.names.items()}}
    return mask_requested_ids(response, known)


async def run_in_parallel(attempts: Iterable[Awaitable[None]]) -> None:
    slots = asyncio.Semaphore(MAX_PARALLEL_REQUESTS)

    async def run_one(attempt: Awaitable[None]) -> None:
        async with slots:
            await attempt

    await asyncio.gather(*(run_one(attempt) for attempt in attempts))


async def list_all_targets(product: Product) -> list[ApiTarget]:
    """Return every route of the running product, those of systems and public ones included."""
    document = (await product.http.get("/api/openapi.json")).json()
    return [
        ApiTarget(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


async def attack_routes(product: Product, log: AttackLog) -> None:
    ann, bob = product.users["ann"], product.users["bob"]
    await product.connection.execute("select pgmq.create($1)", PATH_PARAMETER_VALUES["queue"])
    tags = frozenset(each["name"] for each in build_openapi_document()["tags"])
    attack = RouteAttack(product, log, await list_all_targets(product), tags)
    for system in product.systems_without_data:
        problem = f"no data of system {system} is planted: add it to PLANTERS_BY_SYSTEM"
        log.check(False, problem, "attack/population.py")
    before = await compute_digest(product, ann)
    await attack.attack_without_credential(ann)
    await attack.attack_as_other_user(ann, bob)
    after = await compute_digest(product, ann)
    changed = [table for table in before if before[table] != after[table]]
    log.check(not changed, f"rows of ann were changed by others: {changed}", "--only routes")
    # What is allowed may delete things, so it happens to a user of its own.
    carol = await plant_user(product, "carol")
    await attack.attack_with_keys(carol)
    await attack.attack_as_owner(await plant_user(product, "dora") if not product.is_short else bob)


ATTACK = Attack("routes", "every route x every identity, generated from the OpenAPI document", attack_routes)

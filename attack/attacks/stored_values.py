"""Values that run later: callbacks of batches, jobs of schedules, and submitted jobs with hostile contents.

Each is stored over HTTP and RPC, as a user and as a service. What is accepted is made to run, and then the
worker must still finish other people's jobs.
"""

from __future__ import annotations

import json
from typing import Any

import httpx

from attack.attacks.attack import Attack
from attack.findings import AttackLog
from attack.target import Product

RPC = {"content-profile": "holdfast", "content-type": "application/json"}
JSON = {"content-type": "application/json"}
DEEP: Any = json.loads("[" * 500 + "]" * 500)
HOSTILE_CALLS: dict[str, Any] = {
    "empty": {},
    "a list": [],
    "a text": "probe",
    "null type": {"type": None},
    "a number as type": {"type": 7},
    "an empty type": {"type": ""},
    "an unknown type": {"type": "no such type"},
    "a long type": {"type": "x" * 100_000},
    "NUL in the type": {"type": "a\u0000b"},
    "a lone surrogate": {"type": "probe", "args": {"number": "\ud800"}},
    "NUL in the arguments": {"type": "probe", "args": {"number": "\u0000"}},
    "arguments of 300 KB": {"type": "probe", "args": {"number": "x" * 300_000}},
    "deep arguments": {"type": "probe", "args": {"number": DEEP}},
    "a list as arguments": {"type": "probe", "args": [1]},
    "a number as queue": {"type": "probe", "queue": 7},
    "an empty queue": {"type": "probe", "queue": ""},
    "a huge priority": {"type": "probe", "queue": "probe", "priority": 10**30, "args": {"number": 1}},
    "an unknown field": {"type": "probe", "queue": "probe", "no such field": 1, "args": {"number": 1}},
    "another owner": {"type": "probe", "queue": "probe", "owner": "somebody", "args": {"number": 1}},
    "a cycle": {"type": "probe", "tasks": [{"name": "a", "type": "probe", "after": ["a"]}]},
}

# These can be submitted, at least by a service. Numbers are stored as text, and such a task fails alone.
VALID_CALLS = {
    "an unknown type",
    "an unknown field",
    "another owner",
    "a number as type",
    "a number as queue",
    "a list as arguments",
}


async def store(product: Product, path: str, headers: dict[str, str], body: Any) -> httpx.Response:
    return await product.send("POST", path, headers, content=json.dumps(body))


class StoredValueAttack:
    """Stores hostile calls and makes them run."""

    def __init__(self, product: Product, log: AttackLog) -> None:
        self.product, self.log = product, log
        self.callers = {"user": product.users["bob"].headers, "service": product.service}

    def check(self, response: httpx.Response, who: str, name: str) -> bool:
        """Check that a value caused no server error. Return whether it was accepted."""
        accepted = response.status_code < 300
        self.log.check_response(response.status_code < 500, response, who, f"server error for {name}")
        self.log.check_response(not accepted or name in VALID_CALLS, response, who, f"accepted: {name}")
        return accepted

    async def attack_callbacks(self) -> None:
        """Open a batch with a hostile callback, end a job in it, and close it."""
        for who, headers in self.callers.items():
            for name, call in HOSTILE_CALLS.items():
                by_http = await store(self.product, "/api/batches", {**headers, **JSON}, {"callback": call})
                by_rpc = await store(
                    self.product,
                    "/rest/v1/rpc/open_batch",
                    {**headers, **RPC},
                    {"p_name": "hostile", "p_callback": call},
                )
                for response in (by_http, by_rpc):
                    if self.check(response, who, name):
                        batch = response.json()
                        await self.end_batch(batch["id"] if isinstance(batch, dict) else batch, headers)

    async def end_batch(self, batch: str, headers: dict[str, str]) -> None:
        """Let a job of the batch end, so that the callback is submitted by the worker that ends it."""
        job = {"type": "planted", "params": {"text": "text"}, "batch": batch}
        created = await store(self.product, "/api/jobs/start", {**headers, **JSON}, job)
        self.log.check_response(created.status_code == 202, created, "owner", "the batch takes no job")
        await self.product.send("POST", f"/api/batches/{batch}/close", headers)
        if created.status_code == 202:
            await self.product.wait_for_job(created.json()["id"])

    async def attack_jobs(self) -> None:
        for who, headers in self.callers.items():
            for name, call in HOSTILE_CALLS.items():
                for path, extra, body in (
                    ("/api/jobs", JSON, call),
                    ("/rest/v1/rpc/submit", RPC, {"p_job": call}),
                    ("/rest/v1/rpc/submit_many", RPC, {"p_jobs": [call, call]}),
                ):
                    response = await store(self.product, path, {**headers, **extra}, body)
                    self.check(response, who, name)

    async def attack_schedules(self) -> None:
        """Store schedules with hostile jobs and run them at once."""
        for number, (name, call) in enumerate(HOSTILE_CALLS.items()):
            path = f"/api/schedules/hostile-{number}"
            content = json.dumps({"every_s": 3600, "job": call})
            headers = {**self.product.service, **JSON}
            response = await self.product.send("PUT", path, headers, content=content)
            if self.check(response, "service", name):
                self.check(await self.product.send("POST", f"{path}/run", self.product.service), "run", name)
                await self.product.send("DELETE", path, self.product.service)


async def attack_stored_values(product: Product, log: AttackLog) -> None:
    attack = StoredValueAttack(product, log)
    for run in (attack.attack_callbacks, attack.attack_jobs, attack.attack_schedules):
        await run()
        await product.run_probe()  # the worker still works
        log.checks += 1


ATTACK = Attack("stored-values", "hostile callbacks, jobs and schedules that run later", attack_stored_values)

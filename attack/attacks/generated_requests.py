"""Valid and invalid generated requests to every route, systems included, as a service, a user and nobody.

CI generates requests in tests/api/test_fuzz.py, so this attack is part of the full dose only.
"""

from __future__ import annotations

import asyncio

from generated_requests import send_generated_requests

from attack.attacks.attack import Attack
from attack.findings import AttackLog
from attack.target import Product

EXAMPLES_PER_ROUTE = 10


async def attack_with_generated_requests(product: Product, log: AttackLog) -> None:
    callers = {"service": product.service, "user": product.users["bob"].headers}
    for who, headers in callers.items():
        sent, failures = await asyncio.to_thread(
            send_generated_requests, product.base, headers, EXAMPLES_PER_ROUTE, random=True
        )
        log.checks += sent
        for failure in failures:
            log.check(False, failure, "make fuzz, or the request above", who)


ATTACK = Attack(
    "generated",
    "generated requests to every route (schemathesis)",
    attack_with_generated_requests,
    in_short_dose=False,
)

"""Budgets of reports: what the providers may cost for one user in 30 days."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

from holdfast import Client

BUDGET_PERIOD = timedelta(days=30)
CENTS_PER_UNIT = 100


async def describe_exhausted_budget(client: Client, owner: str | None) -> str | None:
    """Return why no more calls may be made for a user, or None while there is budget left.

    The cost counts every call of the user, also those of other systems: providers send one bill.
    """
    budget_cents = client.settings.report_budget_cents
    if budget_cents <= 0 or owner is None:
        return None
    query = "select holdfast.get_provider_cost($1, (holdfast.now() at time zone 'UTC')::date - $2::integer)"
    async with client.connection() as connection:
        cost: Decimal = await connection.fetchval(query, owner, BUDGET_PERIOD.days)
    if cost * CENTS_PER_UNIT < budget_cents:
        return None
    budget = Decimal(budget_cents) / CENTS_PER_UNIT
    return f"The budget of {budget:.2f} for {BUDGET_PERIOD.days} days is used up: {cost:.2f} was spent."

"""The attacks by name. Each is a module with an `ATTACK`, or several `ATTACKS`."""

from __future__ import annotations

from attack.attacks import (
    catalogue,
    dashboard,
    generated_requests,
    hostile_text,
    route_access,
    secret_texts,
    signed_links,
    slow_clients,
    sql_functions,
    sql_statements,
    stored_values,
    streams,
    tokens,
)
from attack.attacks.attack import Attack

__all__ = ["ATTACKS_BY_NAME", "Attack"]

# In the order of execution: what leaves much behind comes last.
ATTACKS_BY_NAME: dict[str, Attack] = {
    attack.name: attack
    for attack in (
        catalogue.ATTACK,
        tokens.ATTACK,
        secret_texts.ATTACK,
        streams.ATTACK,
        *sql_functions.ATTACKS,
        sql_statements.ATTACK,
        stored_values.ATTACK,
        signed_links.ATTACK,
        route_access.ATTACK,
        hostile_text.ATTACK,
        dashboard.ATTACK,  # as all roles, with the hostile texts on its pages
        slow_clients.ATTACK,
        generated_requests.ATTACK,
    )
}

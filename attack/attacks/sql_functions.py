"""Every SQL function called by every role, over `/rest/v1/rpc` and directly in SQL.

Users pass the ids of another user. Nothing of that user is in an answer, and none of that user's rows change.
Hostile values give no server error and do not stop the worker.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
from api_clients import bearer_headers

from attack.attacks.attack import Attack
from attack.attacks.route_access import INTERNALS, run_in_parallel
from attack.findings import AttackLog
from attack.identities import User, create_key, create_key_identities
from attack.population import compute_digest
from attack.target import Product
from holdfast.engine.connection import Connection

NAMES_AN_OBJECT = re.compile(r"owner|user|filter|uuid")
FUNCTION_SCHEMAS = ("holdfast", "pgmq_public")
CLOSED_SCHEMAS = ("pg_catalog", "information_schema", "public", "pgmq", "holdfast_test", "")
LIST_FUNCTIONS = """
select p.oid, n.nspname::text as schema, p.proname::text as name,
  p.pronargdefaults::int as defaults, coalesce(p.proargnames, '{}') as names,
  coalesce(p.proargmodes::text[], pg_catalog.array_fill('i'::text, array[p.pronargs::int])) as modes,
  array(select pg_catalog.format_type(u.t, null)
    from pg_catalog.unnest(coalesce(p.proallargtypes, p.proargtypes::oid[])) with ordinality as u (t, n)
    order by u.n) as types,
  pg_catalog.has_function_privilege('anon', p.oid, 'execute')
    and pg_catalog.has_schema_privilege('anon', n.oid, 'usage') as anon,
  pg_catalog.has_function_privilege('authenticated', p.oid, 'execute') as authenticated
from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = p.pronamespace
where n.nspname = any ($1::text[]) and p.prokind = 'f' and p.prorettype <> 'trigger'::regtype
order by 2, 3
"""
HOSTILE_VALUES: list[Any] = [
    "NUL \u0000 byte",
    "lone \ud800 surrogate",
    10**400,
    {"unexpected": ["object"]},
    "x" * 300_000,
    -1,
    9223372036854775807,
    None,
    True,
    [],
    [[]],
    {},
    "",
    "infinity",
    "NaN",
    1e308,
    "' or 1=1 --",
    "\u202e\u0007\u001b[31m",
    [None, {}, "x"],
    {"type": None, "args": {"\u0000": "\ud800"}},
]
HOSTILE_VALUES_IN_SHORT_DOSE = 4


@dataclass(frozen=True)
class FunctionTarget:
    """A SQL function and its arguments as pairs of name and type. The last `defaults` may be left out."""

    schema: str
    name: str
    arguments: tuple[tuple[str, str], ...]
    defaults: int
    anon: bool
    authenticated: bool

    def build_arguments(self, user: User, kind: str, *, every: bool = False) -> dict[str, Any]:
        """Return the required arguments, and those that can name an object of a user; or every argument."""
        required = len(self.arguments) - self.defaults
        return {
            name: build_value(name, type_name, user, kind)
            for position, (name, type_name) in enumerate(self.arguments)
            if every or position < required or NAMES_AN_OBJECT.search(f"{name} {type_name}")
        }

    @property
    def takes_ids(self) -> bool:
        return any("uuid" in type_name for _, type_name in self.arguments)


def build_value(name: str, type_name: str, user: User, kind: str) -> Any:
    """Return a plausible value of a SQL type that names an object of a user."""
    if type_name.endswith("[]"):
        return [build_value(name, type_name.removesuffix("[]"), user, kind)]
    if type_name == "uuid":
        return user.ids[kind]
    if type_name in ("json", "jsonb"):
        return {"owner": user.id, "type": "probe"} if "job" in name else {"owner": user.id}
    if type_name in ("text", "character varying", "name"):
        if "owner" in name or "user" in name:
            return user.id
        return user.names["schedule"] if name in ("p_name", "p_schedule") else "attack"
    if "timestamp" in type_name:
        return "2030-01-01T00:00:00Z"
    return {"boolean": True, "bytea": "\\x00", "interval": "1 second", "date": "2030-01-01"}.get(type_name, 1)


async def list_functions(connection: Connection, schemas: tuple[str, ...]) -> list[FunctionTarget]:
    rows = await connection.fetch(LIST_FUNCTIONS, list(schemas))
    return [
        FunctionTarget(
            schema=row["schema"],
            name=row["name"],
            arguments=tuple(_list_inputs(row)),
            defaults=row["defaults"],
            anon=row["anon"],
            authenticated=row["authenticated"],
        )
        for row in rows
    ]


def _list_inputs(row: Any) -> Iterator[tuple[str, str]]:
    names = [*row["names"], *[""] * (len(row["types"]) - len(row["names"]))]
    for name, mode, type_name in zip(names, row["modes"], row["types"], strict=True):
        if mode in ("i", "b", "v"):
            yield name, type_name


class FunctionAttack:
    """Calls functions and checks what they answer and what they change."""

    def __init__(self, product: Product, log: AttackLog, functions: list[FunctionTarget]) -> None:
        self.product, self.log, self.functions = product, log, functions
        self.ann, self.bob = product.users["ann"], product.users["bob"]

    def list_kinds(self, function: FunctionTarget) -> list[str]:
        """Return the kinds of ids to pass to a function."""
        if not function.takes_ids:
            return ["job"]
        kinds = ["job", "failed_task", "batch", "artifact", "webhook", "waiting_job"]
        return kinds if not self.product.is_short else kinds[:3]

    async def call(
        self, function: FunctionTarget, arguments: dict[str, Any], headers: dict[str, str]
    ) -> httpx.Response:
        content = json.dumps(arguments, ensure_ascii=True)
        return await self.product.send(
            "POST",
            f"/rest/v1/rpc/{quote(function.name)}",
            {**headers, "content-profile": function.schema, "content-type": "application/json"},
            content=content,
        )

    def check_answer(self, response: httpx.Response, who: str, arguments: dict[str, Any]) -> None:
        self.log.check_response(response.status_code < 500, response, who, "server error")
        text = response.text
        for value in arguments.values():
            text = text.replace(value, "") if isinstance(value, str) and value else text
        self.log.check_response(self.ann.marker not in text, response, who, "shows data of ann")

    async def attack_over_http(self) -> None:
        """Call each function without a credential, as bob with ids of ann, and as ann with her own ids."""

        async def attempt(function: FunctionTarget, kind: str, *, every: bool = False) -> None:
            arguments = function.build_arguments(self.ann, kind, every=every)
            foreign = await self.call(function, arguments, self.bob.headers)
            self.check_answer(foreign, "other user", arguments)
            own = await self.call(
                function, function.build_arguments(self.bob, kind, every=every), self.bob.headers
            )
            internals = INTERNALS.search(own.text)
            self.log.check_response(internals is None, own, "owner", f"shows internals: {internals}")
            self.log.check_response(own.status_code < 500, own, "owner", "server error")

        before = await compute_digest(self.product, self.ann)
        for function in self.functions:
            arguments = function.build_arguments(self.ann, "job")
            nobody = await self.call(function, arguments, {})
            self.log.check_response(nobody.status_code == 401, nobody, "anonymous", "expected 401")
            if not function.authenticated:
                refused = await self.call(function, arguments, self.bob.headers)
                passed = refused.status_code in (403, 404)
                self.log.check_response(passed, refused, "other user", "it is not granted to users")
                continue
            for kind in self.list_kinds(function):
                await attempt(function, kind)
                if not self.product.is_short:
                    await attempt(function, kind, every=True)
            before = await self.check_rows(before, f"rpc {function.schema}.{function.name} as another user")

    async def check_rows(self, before: dict[str, str], what: str) -> dict[str, str]:
        after = await compute_digest(self.product, self.ann)
        changed = [table for table in before if before[table] != after[table]]
        self.log.check(not changed, f"rows of ann were changed: {changed}", what, what)
        return after

    async def attack_schemas(self) -> None:
        for schema in CLOSED_SCHEMAS:
            for name in ("now", "pg_sleep", "version", "claim_tasks", "set_config"):
                headers = {**self.product.service, "content-profile": schema}
                response = await self.product.send("POST", f"/rest/v1/rpc/{name}", headers, json={})
                refused = response.status_code in (404, 406)
                self.log.check_response(refused, response, f"service, schema {schema!r}", "expected 406")

    async def attack_with_scopes(self) -> None:
        """Call each function with a key of each scope: no key may create keys, logins or sessions."""
        keys = await create_key_identities(self.product.connection)
        keys = [key for key in keys if "rpc" in key.scopes or not self.product.is_short]
        nobody = User("nobody", ids=make_missing_ids(self.ann), names={"schedule": "missing"})
        for function in self.functions:
            before = await self.count_credentials()
            for key in keys:
                arguments = function.build_arguments(nobody, "job")
                response = await self.call(function, arguments, key.headers)
                self.log.check_response(response.status_code < 500, response, key.name, "server error")
                if "rpc" not in key.scopes:
                    self.log.check_response(response.status_code >= 400, response, key.name, "no rpc scope")
            after = await self.count_credentials()
            what = f"rpc {function.schema}.{function.name} with a key of scope rpc"
            self.log.check(after == before, f"created credentials: {before} -> {after}", what, what)

    async def count_credentials(self) -> dict[str, int]:
        """Count keys, login links and sessions. No function may create them for a key of scope rpc."""
        tables = await self.product.connection.fetch(
            """select relname::text from pg_catalog.pg_class where relnamespace = 'holdfast'::regnamespace
               and relkind = 'r' and relname ~ '(service_keys|login|session|ticket)'"""
        )
        return {
            row["relname"]: await self.product.connection.fetchval(
                f"select count(*) from holdfast.{row['relname']}"
            )
            for row in tables
        }

    async def attack_with_hostile_values(self) -> None:
        """Pass a hostile value for each argument in turn, as a user and as a service for everything."""
        values = HOSTILE_VALUES[: HOSTILE_VALUES_IN_SHORT_DOSE if self.product.is_short else None]
        service = bearer_headers(await create_key(self.product.connection, "*"))
        missing = User("nobody", ids=make_missing_ids(self.ann), names={"schedule": "missing"})

        async def attempt(function: FunctionTarget, argument: str, value: Any, who: str) -> None:
            headers = service if who == "service" else self.bob.headers
            arguments = {**function.build_arguments(missing, "job"), argument: value}
            response = await self.call(function, arguments, headers)
            if who == "service":  # it may see everything
                self.log.check_response(response.status_code < 500, response, who, "server error")
            else:
                self.check_answer(response, who, arguments)

        for function in self.functions:
            callers: tuple[str, ...] = ("other user", "service") if function.authenticated else ("service",)
            if function.name in FUNCTIONS_THAT_STOP_THE_PRODUCT:
                callers = tuple(who for who in callers if who != "service")
            await run_in_parallel(
                attempt(function, argument, value, who)
                for position, (argument, _) in enumerate(function.arguments)
                for who in callers
                for value in (
                    values if who != "service" or not self.product.is_short else [values[position % 2]]
                )
            )


# What a service may do on purpose: with these, a service that may do everything stops workers or queues.
FUNCTIONS_THAT_STOP_THE_PRODUCT = {"purge_queue", "drop_queue", "cancel_jobs"}


def make_missing_ids(user: User) -> dict[str, str]:
    return {kind: User("nobody").id for kind in user.ids}


async def attack_functions(product: Product, log: AttackLog) -> None:
    attack = FunctionAttack(product, log, await list_functions(product.connection, FUNCTION_SCHEMAS))
    await attack.attack_over_http()
    await attack.attack_schemas()
    await attack.attack_with_scopes()


async def attack_with_hostile_values(product: Product, log: AttackLog) -> None:
    attack = FunctionAttack(product, log, await list_functions(product.connection, FUNCTION_SCHEMAS))
    await attack.attack_with_hostile_values()


ATTACKS = (
    Attack("functions", "every RPC function x user, other user and key of each scope", attack_functions),
    Attack("hostile-values", "NUL, surrogates, huge and wrong values for RPC", attack_with_hostile_values),
)

"""Every function and every table directly in SQL, as each role and with a login that is no API."""

from __future__ import annotations

import json
from typing import Any

import asyncpg

from attack.attacks.attack import Attack
from attack.attacks.sql_functions import FUNCTION_SCHEMAS, FunctionTarget, list_functions
from attack.findings import AttackLog, format_statement
from attack.target import Product
from holdfast.engine.connection import Connection

STATEMENT_TIMEOUT_MS = 1000  # some functions wait for an event
MEMBER_LOGIN = "attack_member"  # a login that is granted `authenticated`, and is no API
# The contract of pgmq_public: everybody may call its functions, and the rights on the queue's table decide.
SCHEMA_WITH_OPEN_FUNCTIONS = "pgmq_public."


class StatementAttack:
    """Calls every function and reads every table directly, in transactions that are rolled back."""

    def __init__(self, product: Product, log: AttackLog, connection: Connection) -> None:
        self.product, self.log, self.connection = product, log, connection
        self.ann = product.users["ann"]

    async def attack(self, role: str, claims: dict[str, Any] | None, functions: list[FunctionTarget]) -> None:
        for function in functions:
            for kind in ("job", "failed_task") if function.takes_ids else ("job",):
                arguments = function.build_arguments(self.ann, kind)
                await self.attempt(role, claims, build_call(function, arguments), arguments)
        for table in await self.product.connection.fetch(
            """select c.oid::regclass::text as name from pg_catalog.pg_class c
               where c.relkind in ('r', 'p', 'v') and not c.relispartition
                 and c.relnamespace in ('holdfast'::regnamespace, $1::text::regnamespace)""",
            self.product.settings.systems_schema,
        ):
            await self.attempt(role, claims, f"select * from {table['name']}", {})

    async def attempt(
        self, role: str, claims: dict[str, Any] | None, statement: str, arguments: dict[str, Any]
    ) -> None:
        """Run a statement as a role. It must show nothing of ann and change nothing of hers."""
        transaction = self.connection.transaction()
        await transaction.start()
        text = ""
        try:
            before = await self.connection.fetchval(
                "select md5(string_agg(t::text, '|' order by t::text)) from holdfast.jobs t where owner = $1",
                self.ann.id,
            ) if role != MEMBER_LOGIN else None  # fmt: skip
            await self.connection.execute(f"set local statement_timeout = {STATEMENT_TIMEOUT_MS}")
            if claims is not None:
                await self.connection.execute(
                    "select set_config('request.jwt.claims', $1, true)", json.dumps(claims)
                )
            if role != MEMBER_LOGIN:
                await self.connection.execute(f"set local role {role}")
            text = str(await self.connection.fetch(statement))
            if role != MEMBER_LOGIN:
                await self.connection.execute("reset role")
                after = await self.connection.fetchval(
                    "select md5(string_agg(t::text, '|' order by t::text)) from holdfast.jobs t "
                    "where owner = $1",
                    self.ann.id,
                )
                self.log.check(
                    before == after,
                    f"{role} changed jobs of ann: {statement}",
                    format_statement(role, claims, statement),
                    role,
                )
        except asyncpg.InternalServerError as error:
            self.log.check(False, f"internal error: {error}", format_statement(role, claims, statement), role)
        except asyncpg.PostgresError:
            pass  # refused
        finally:
            await transaction.rollback()
        for value in arguments.values():
            text = text.replace(value, "") if isinstance(value, str) and value else text
        self.log.check(
            self.ann.marker not in text,
            f"{role} sees data of ann: {statement[:200]}",
            format_statement(role, claims, statement),
            role,
        )


def build_call(function: FunctionTarget, arguments: dict[str, Any]) -> str:
    """Return a call of a function with literals, as a person would type it."""
    parts: list[str] = []
    types = dict(function.arguments)
    for name, value in arguments.items():
        type_name = types[name]
        if isinstance(value, list):
            literal = "array[" + ", ".join(_quote_literal(each) for each in value) + "]"
        else:
            literal = _quote_literal(value)
        parts.append(f"{name} => {literal}::{type_name}" if name else f"{literal}::{type_name}")
    return f"select * from {function.schema}.{function.name}({', '.join(parts)})"


def _quote_literal(value: Any) -> str:
    text = json.dumps(value) if isinstance(value, dict) else str(value)
    return "'" + text.replace("'", "''") + "'"


async def attack_statements(product: Product, log: AttackLog) -> None:
    """Call everything as anon, as another user, as a worker, and with a login that is granted a role."""
    schemas = (*FUNCTION_SCHEMAS, product.settings.systems_schema)
    functions = await list_functions(product.connection, schemas)
    open_to_anon = [f"{each.schema}.{each.name}" for each in functions if each.anon]
    open_to_anon = [name for name in open_to_anon if not name.startswith(SCHEMA_WITH_OPEN_FUNCTIONS)]
    log.check(not open_to_anon, f"anon may call {open_to_anon}", "\\df+", "anon")
    for_users = [each for each in functions if each.authenticated]
    bob = product.users["bob"]
    attack = StatementAttack(product, log, product.connection)
    await attack.attack("anon", None, for_users)
    await attack.attack("authenticated", bob.claims, for_users if product.is_short else functions)
    await attack.attack("authenticated", None, for_users)
    await attack.attack("authenticated", {"sub": [product.users["ann"].id]}, for_users)
    await attack_with_member_login(product, log, for_users)


async def attack_with_member_login(product: Product, log: AttackLog, functions: list[FunctionTarget]) -> None:
    """Use a login that is granted `authenticated` without being the API: it is nobody."""
    await product.connection.execute(
        f"create role {MEMBER_LOGIN} login password 'attack' in role authenticated"
    )
    connection = await product.connect(user=MEMBER_LOGIN, password="attack")
    try:
        await StatementAttack(product, log, connection).attack(MEMBER_LOGIN, None, functions)
    finally:
        await connection.close()


ATTACK = Attack(
    "statements", "every function and table in SQL as each role and as a stranger", attack_statements
)

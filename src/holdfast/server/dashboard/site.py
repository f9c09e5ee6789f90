"""The frame around every page: who asks, what they may, the one transaction, and how it is rendered.

A screen is a function from a `View` to a `Page`: a template and its values. A deed is a function that
changes something and answers with where to go next. Both say which permission they need when they are
registered, so nothing is reachable that was not thought about; a test walks the two registries.

Screens read in a transaction of their own that is read only, acts as the service role and may take two
seconds. When the database does not answer in time the visitor sees the last good state of that page with a
banner, and the page goes on trying.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast
from urllib.parse import quote, urlencode
from uuid import UUID

import jinja2
from starlette.datastructures import FormData, QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse, Response

from holdfast.engine import access
from holdfast.engine.connection import Connection
from holdfast.errors import InvalidError
from holdfast.search import quoted
from holdfast.server.api.services import Services
from holdfast.server.dashboard import charts, words
from holdfast.server.dashboard.redaction import Redactor
from holdfast.server.dashboard.roles import Visitor
from holdfast.server.dashboard.sessions import FLASH, Session, Signer
from holdfast.version import __version__

READ_SECONDS = 2.0
REMEMBERED = 200
_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)+")
_THEMES = ("system", "light", "dark")
_ZONES = ("relative", "utc")


@dataclass(frozen=True)
class Page:
    template: str
    title: str
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    live: bool = True
    status: int = 200


@dataclass
class View:
    """One request for one page, by one visitor."""

    site: Site
    session: Session
    base: str
    path: str
    query: QueryParams
    params: Mapping[str, Any]
    cookies: Mapping[str, str]
    connection: Connection = field(init=False)

    @property
    def visitor(self) -> Visitor:
        return self.session.visitor

    @property
    def tenant(self) -> str | None:
        return self.visitor.tenant

    @property
    def now(self) -> datetime:
        return datetime.now(UTC)

    def may(self, permission: str) -> bool:
        return self.visitor.may(permission)

    def redactor(self) -> Redactor:
        return Redactor(self.visitor)

    def url(self, path: str, **query: Any) -> str:
        """An address of ours, wherever we are mounted."""
        kept = {name: value for name, value in query.items() if value is not None and value != ""}
        return f"{self.base}{path}" + (f"?{urlencode(kept, doseq=True)}" if kept else "")

    def uuid(self, name: str = "id") -> UUID:
        return as_uuid(self.params.get(name) or self.query.get(name))

    @property
    def before(self) -> UUID | None:
        given = self.query.get("before")
        return as_uuid(given) if given else None

    def owns(self, owner: str | None) -> bool:
        """Whether this visitor may know of something that belongs to this owner."""
        return self.tenant is None or owner == self.tenant


@dataclass
class Deed:
    """A change that somebody asked for, with its form, inside its transaction."""

    view: View
    form: FormData
    connection: Connection

    @property
    def by(self) -> str:
        return self.view.visitor.name

    def text(self, name: str, *, most: int = 2000) -> str:
        value = self.form.get(name)
        return value.replace("\0", "")[:most].strip() if isinstance(value, str) else ""

    def needed(self, name: str) -> str:
        found = self.text(name)
        if not found:
            raise InvalidError(f"{name} is missing.", field=name)
        return found

    async def audit(self, action: str, target: object = None, **detail: Any) -> None:
        said = {name: value for name, value in detail.items() if value not in (None, "")}
        await access.record(
            self.connection,
            self.view.visitor.actor,
            action,
            None if target is None else str(target),
            said or None,
        )


Screen = Callable[[View], Awaitable[Page]]
Download = Callable[[View], Awaitable[Response]]
Action = Callable[[Deed], Awaitable["tuple[str, str] | Page | Response"]]


def as_uuid(text: object) -> UUID:
    try:
        return UUID(str(text))
    except ValueError:
        raise HTTPException(404, "There is no such thing here.") from None


class Site:
    """What all requests share."""

    def __init__(self, services: Services, *, environment: str = "") -> None:
        self.services = services
        self.signer = Signer(services.settings)
        self.environment = environment
        self._good: OrderedDict[tuple[str, ...], str] = OrderedDict()
        self._role: str | None = None
        self._asked_role = False
        self.templates = _templates()

    @asynccontextmanager
    async def transaction(
        self, *, seconds: float = READ_SECONDS, write: bool = False
    ) -> AsyncGenerator[Connection]:
        role = await self._service_role()
        async with self.services.database.transaction() as connection:
            await access.act_as(connection, role, {"role": "service_role"}, timedelta(seconds=seconds))
            if not write:
                await connection.execute("set transaction read only")
            yield connection

    async def _service_role(self) -> str | None:
        if not self._asked_role:
            self._role = "service_role" if "service_role" in await self.services.roles() else None
            self._asked_role = True
        return self._role

    def render(self, view: View, page: Page, *, fragment: bool = False, problem: str | None = None) -> str:
        """The whole page, or the part of it that lives."""
        values = self._values(view, page, problem)
        template = self.templates.get_template(page.template)
        if fragment:
            context = template.new_context(values)
            return "".join(template.blocks["live"](context))
        return template.render(values)

    def _values(self, view: View, page: Page, problem: str | None) -> dict[str, Any]:
        theme = view.cookies.get("holdfast_theme", "system")
        now = view.now
        absolute = view.cookies.get("holdfast_time") == "utc"
        return {
            **page.values,
            "page": page,
            "view": view,
            "visitor": view.visitor,
            "may": view.may,
            "url": view.url,
            "base": view.base,
            "token": view.session.token,
            "now": now,
            "when": partial(words.when, now=now, absolute=absolute),
            "theme": theme if theme in _THEMES else "system",
            "keys_off": view.cookies.get("holdfast_keys") == "off",
            "dense": view.cookies.get("holdfast_density") == "dense",
            "previews": view.cookies.get("holdfast_previews") != "off",
            "environment": self.environment,
            "problem": problem,
            "version": __version__,
        }

    def remember(self, view: View, html: str) -> None:
        key = _place(view)
        self._good[key] = html
        self._good.move_to_end(key)
        while len(self._good) > REMEMBERED:
            self._good.popitem(last=False)

    def recall(self, view: View) -> str | None:
        return self._good.get(_place(view))


def _place(view: View) -> tuple[str, ...]:
    """What decides how a page looks: two visitors who may see the same are shown the same."""
    who = view.visitor
    looks = [view.cookies.get(f"holdfast_{name}", "") for name in ("time", "density", "previews")]
    saved = who.name if view.path.startswith("/jobs") else ""
    return (view.base, view.path, str(view.query), who.role, who.tenant or "", saved, *looks)


def place_of(view: View) -> tuple[str, ...]:
    return _place(view)


def base_of(connection: HTTPConnection) -> str:
    """Where we are mounted: the ASGI root path, behind what a proxy says it took away."""
    taken = connection.headers.get("x-forwarded-prefix", "").rstrip("/")
    if taken and not _PREFIX.fullmatch(taken):
        taken = ""
    root = str(connection.scope.get("root_path", "")).rstrip("/")
    return quote(taken + root, safe="/~")


def redirect(site: Site, view: View, path: str, message: str) -> Response:
    answer = RedirectResponse(view.base + path, status_code=303)
    if message:
        answer.set_cookie(
            FLASH,
            site.signer.sign("flash", message),
            max_age=30,
            httponly=True,
            samesite="lax",
            path=view.base or "/",
        )
    return answer


def _templates() -> jinja2.Environment:
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("holdfast.server.dashboard"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    for name in (
        *("number", "compact", "upto", "seconds", "size", "short", "pretty", "preview", "clip", "plural"),
        *("safe_link", "relative"),
    ):
        env.filters[name] = getattr(words, name)
    env.filters["quoted"] = quoted
    known = cast("dict[str, Any]", env.globals)
    known.update(
        state=words.state, icon=words.icon, between=words.between, spark=charts.spark, meter=charts.meter
    )
    known["m"] = env.get_template("macros.html").module  # for blocks that are rendered alone
    return env

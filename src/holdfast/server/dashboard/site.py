"""What every page of the dashboard uses: the request, the database transaction and the templates.

A page is a function from a `PageRequest` to a `DashboardPage`: a template and its values. An action is a
function from an `ActionRequest` that changes something and returns the path to redirect to. Both name the
permission that they need when they are registered (`registry`).

Pages read in a transaction that is read-only, acts as the service role and may take two seconds. If the
database does not answer in time, the user sees the last good version of the page with a banner, and the page
keeps trying.
"""

from __future__ import annotations

import asyncio
import copy
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import quote, urlencode
from uuid import UUID

import jinja2
from markupsafe import Markup
from starlette.datastructures import FormData, QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response

from holdfast.engine import access, audit
from holdfast.engine.connection import Connection, Database
from holdfast.errors import InvalidError
from holdfast.formatting import seconds_between
from holdfast.redaction import SecretMasker
from holdfast.server.api.services import AppServices
from holdfast.server.dashboard import charts, filters, state_badges
from holdfast.server.dashboard.flash import ActionResult
from holdfast.server.dashboard.navigation import filter_navigation_links
from holdfast.server.dashboard.redaction import PayloadRedactor
from holdfast.server.dashboard.roles import DashboardUser
from holdfast.server.dashboard.sessions import CookieSigner, DashboardSession, SessionStore
from holdfast.server.dashboard.template_source import CompactTemplateExtension
from holdfast.version import __version__

T = TypeVar("T")
U = TypeVar("U")

PAGE_READ_TIMEOUT_S = 2.0
PREFERENCE_COOKIE_LIFETIME_S = 365 * 86400
MAX_CACHED_PAGES = 200
_PATH_PREFIX_PATTERN = re.compile(r"(/[A-Za-z0-9._~-]+)+")
_ID_PATTERN = re.compile(r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)
_THEME_NAMES = ("system", "light", "dark")
_PREFERENCES_OF_CONTENT = ("time", "density", "columns", "span")
_TIME_STYLES = ("relative", "local", "utc")


@dataclass(frozen=True)
class DashboardPage:
    """A dashboard page before rendering: its template, title and values.

    A live page is rendered again whenever the database changes.
    """

    template: str
    title: str
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    live: bool = True
    status: int = 200
    read_note: str | None = None  # where the data comes from and how old it is, with a read replica


class ShardLink(NamedTuple):
    """A link of the shard picker."""

    label: str
    url: str
    is_current: bool


@dataclass
class PageRequest:
    """A GET request of a signed-in user, with its parameters and a read transaction."""

    site: DashboardSite
    session: DashboardSession
    base: str
    path: str
    query: QueryParams
    params: Mapping[str, Any]
    cookies: Mapping[str, str]
    connection: Connection = field(init=False)
    reads_replica: bool = False
    read_database: Database | None = field(default=None, init=False)  # where `connection` reads

    async def read_together(
        self, read: Callable[[PageRequest], Awaitable[T]], read_beside: Callable[[PageRequest], Awaitable[U]]
    ) -> tuple[T, U]:
        """Run two reads at once: the second on another connection, or after the first if none is free.

        The second one may see the database a moment later than the first.
        """
        if self.read_database is None or self.site.extra_reads.locked():
            return await read(self), await read_beside(self)
        async with self.site.extra_reads, self.site.open_transaction(self.read_database) as connection:
            beside = copy.copy(self)
            beside.connection = connection
            results = await asyncio.gather(read(self), read_beside(beside), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return cast("tuple[T, U]", tuple(results))

    @property
    def user(self) -> DashboardUser:
        return self.session.user

    @property
    def tenant(self) -> str | None:
        return self.user.tenant

    @property
    def now(self) -> datetime:
        return datetime.now(UTC)

    def can(self, permission: str) -> bool:
        """Return whether the user has a permission, such as `jobs.retry`."""
        return self.user.can(permission)

    def can_see_owner(self, owner: str | None) -> bool:
        """Return whether the user may see jobs of this owner."""
        return self.tenant is None or owner == self.tenant

    def create_redactor(self) -> PayloadRedactor:
        """Create a redactor that hides values which the user may not read. For jobs: `job_redaction`."""
        return PayloadRedactor(self.user, SecretMasker())

    def build_url(self, path: str, **query: Any) -> str:
        """Build the URL of a dashboard path with a query string. Empty parameters are left out."""
        return self.base + build_dashboard_url(path, **query)

    def parse_id(self, name: str = "id") -> UUID:
        """Return the UUID in a path or query parameter. Respond with 404 if it is malformed."""
        return parse_uuid_or_404(self.params.get(name) or self.query.get(name))

    @property
    def before_id(self) -> UUID | None:
        """The id in the query parameter `before`: the list shows only older rows."""
        text = self.query.get("before")
        return parse_uuid_or_404(text) if text else None


@dataclass
class ActionRequest:
    """A POST request of a signed-in user, with its form and a write transaction."""

    request: PageRequest
    form: FormData
    connection: Connection

    @property
    def actor_name(self) -> str:
        return self.request.user.name

    def get_text(self, name: str, *, max_chars: int = 2000) -> str:
        """Return a form field as trimmed text, or an empty text if it is missing."""
        value = self.form.get(name)
        return value.replace("\0", "")[:max_chars].strip() if isinstance(value, str) else ""

    def get_required_text(self, name: str) -> str:
        """Return a form field as text, or raise `InvalidError` if it is empty."""
        text = self.get_text(name)
        if not text:
            raise InvalidError(f"{name} is required.", field=name)
        return text

    def get_number(self, name: str) -> float | None:
        """Return a form field as a number, or None if it is empty."""
        text = self.get_text(name)
        try:
            return float(text) if text else None
        except ValueError:
            raise InvalidError(f"{name} must be a number.", field=name) from None

    async def record_audit(self, action: str, target: object = None, **detail: Any) -> None:
        """Write the user's action to the audit log. Empty details are left out."""
        recorded = {name: value for name, value in detail.items() if value not in (None, "")}
        await audit.record_audit_entry(
            self.connection,
            self.request.user.actor,
            action,
            None if target is None else str(target),
            recorded or None,
        )


PageFunction = Callable[[PageRequest], Awaitable[DashboardPage]]
DownloadFunction = Callable[[PageRequest], Awaitable[Response]]
ActionFunction = Callable[
    [ActionRequest], Awaitable["tuple[str, str] | ActionResult | DashboardPage | Response"]
]


def build_dashboard_url(path: str, **query: Any) -> str:
    """Build a dashboard path with a query string. Empty parameters are left out."""
    parameters = {name: value for name, value in query.items() if value is not None and value != ""}
    return path + (f"?{urlencode(parameters, doseq=True)}" if parameters else "")


def parse_uuid_or_404(text: object) -> UUID:
    """Parse a UUID from a URL. Respond with 404 if it is malformed."""
    try:
        return UUID(str(text))
    except ValueError:
        raise HTTPException(404, "The URL contains an invalid id.") from None


class DashboardSite:
    """The state that all dashboard requests share: services, sessions, templates and cached pages."""

    def __init__(self, services: AppServices, *, environment: str = "") -> None:
        self.services = services
        self.signer = CookieSigner(services.settings)
        self.sessions = SessionStore(services)
        self.environment = environment
        self.shard: int | None = None  # the shard that this site shows, if there are several
        self.shard_numbers: list[int] = []
        self.shard_sites: dict[int, DashboardSite] = {}  # of the site that shows all of them
        self.templates = _create_template_environment()
        self._cached_pages: OrderedDict[tuple[str, ...], str] = OrderedDict()
        # Pages that hold one connection and wait for a second one must leave some for the others.
        self.extra_reads = asyncio.Semaphore(services.settings.pool_size // 4)
        self._role: str | None = None
        self._role_is_known = False

    @asynccontextmanager
    async def transaction(
        self, *, timeout_s: float = PAGE_READ_TIMEOUT_S, write: bool = False
    ) -> AsyncGenerator[Connection]:
        """Open a database transaction as the service role, read-only unless `write` is set."""
        async with self.open_transaction(
            self.services.database, timeout_s=timeout_s, write=write
        ) as connection:
            yield connection

    async def load_page(self, request: PageRequest, function: PageFunction) -> DashboardPage:
        """Call the function of a page in a read transaction, on the read replica if the page may use it."""

        @asynccontextmanager
        async def open_transaction(database: Database) -> AsyncGenerator[Connection]:
            request.read_database = database
            async with self.open_transaction(database) as connection:
                yield connection

        async def load(connection: Connection) -> DashboardPage:
            request.connection = connection
            return await function(request)

        if not request.reads_replica:
            async with self.transaction() as connection:
                return await load(connection)
        page, source = await self.services.get_replica_reads().run_read(open_transaction, load)
        return replace(page, read_note=source.note)

    @asynccontextmanager
    async def open_transaction(
        self, database: Database, *, timeout_s: float = PAGE_READ_TIMEOUT_S, write: bool = False
    ) -> AsyncGenerator[Connection]:
        """Open a transaction as the service role on the primary or on the read replica."""
        role = await self._find_service_role()
        async with database.transaction() as connection:
            await access.set_transaction_role(
                connection, role, {"role": "service_role"}, timedelta(seconds=timeout_s)
            )
            if not write:
                await connection.execute("set transaction read only")
            yield connection

    async def _find_service_role(self) -> str | None:
        if not self._role_is_known:
            self._role = (
                "service_role" if "service_role" in await self.services.fetch_allowed_roles() else None
            )
            self._role_is_known = True
        return self._role

    def render_content(self, request: PageRequest, page: DashboardPage, problem: str | None = None) -> str:
        """Render the part of a page that live updates replace."""
        template = self.templates.get_template(page.template)
        context = template.new_context(self._build_template_values(request, page, problem))
        note = self.templates.get_template("components/read_note.html").render(page=page)
        return note + "".join(template.blocks["content"](context))

    def render_document(
        self, request: PageRequest, page: DashboardPage, content: str, problem: str | None = None
    ) -> str:
        """Render the whole document around the content of a page."""
        values = self._build_template_values(request, page, problem)
        layout = self.templates.get_template("layout.html")
        return layout.render(values, content=Markup(content))  # noqa: S704  (the HTML of render_content)

    def _build_template_values(
        self, request: PageRequest, page: DashboardPage, problem: str | None
    ) -> dict[str, Any]:
        theme = request.cookies.get("holdfast_theme", "system")
        time_style = request.cookies.get("holdfast_time", "relative")
        return {
            **page.values,
            "page": page,
            "request": request,
            "user": request.user,
            "can": request.can,
            "navigation": filter_navigation_links(request.can),
            "url": request.build_url,
            "base": request.base,
            "token": request.session.token,
            "time": partial(filters.render_time, now=request.now, style=time_style),
            "time_style": time_style if time_style in _TIME_STYLES else "relative",
            "theme": theme if theme in _THEME_NAMES else "system",
            "shortcuts_off": request.cookies.get("holdfast_keys") == "off",
            "dense": request.cookies.get("holdfast_density") == "dense",
            "environment": self.environment,
            "shard_links": self._build_shard_links(request),
            "problem": problem,
            "version": __version__,
        }

    def _build_shard_links(self, request: PageRequest) -> list[ShardLink]:
        """Build the links of the shard picker: all shards, then the same page on each shard."""
        if not self.shard_numbers:
            return []
        root = request.base.removesuffix(f"/shards/{self.shard}")
        path = "/" if _ID_PATTERN.search(request.path) else request.path  # an id is on one shard
        return [
            ShardLink("All shards", f"{root}{path}", self.shard is None),
            *(
                ShardLink(f"Shard {number}", f"{root}/shards/{number}{path}", number == self.shard)
                for number in self.shard_numbers
            ),
        ]

    def cache_page_html(self, request: PageRequest, html: str) -> None:
        """Cache the content of a page, to show it while the database does not respond."""
        key = get_page_cache_key(request)
        self._cached_pages[key] = html
        self._cached_pages.move_to_end(key)
        while len(self._cached_pages) > MAX_CACHED_PAGES:
            self._cached_pages.popitem(last=False)

    def get_cached_page(self, request: PageRequest) -> str | None:
        """Return the cached content of a page, or None."""
        return self._cached_pages.get(get_page_cache_key(request))


def get_page_cache_key(request: PageRequest) -> tuple[str, ...]:
    """Return the cache key of a page. Users with the same key see the same content."""
    user = request.user
    preferences = [request.cookies.get(f"holdfast_{name}", "") for name in _PREFERENCES_OF_CONTENT]
    name = ""
    if request.path.startswith("/jobs"):
        name = user.name  # the jobs page lists the user's saved views
    elif request.path.startswith("/sessions"):
        name = str(request.session.id)  # the sessions page shows other sessions to each login
    return (request.base, request.path, str(request.query), user.role, user.tenant or "", name, *preferences)


def get_base_path(connection: HTTPConnection) -> str:
    """Return the URL path where the dashboard is mounted, including a prefix that a proxy removed."""
    removed = connection.headers.get("x-forwarded-prefix", "").rstrip("/")
    if removed and not _PATH_PREFIX_PATTERN.fullmatch(removed):
        removed = ""
    root = str(connection.scope.get("root_path", "")).rstrip("/")
    return quote(removed + root, safe="/~")


def _create_template_environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("holdfast.server.dashboard"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        extensions=[CompactTemplateExtension],
    )
    environment.filters.update(filters.TEMPLATE_FILTERS)
    functions = cast("dict[str, Any]", environment.globals)
    functions.update(
        icon=state_badges.render_icon,
        state_badge=state_badges.render_state_badge,
        seconds_between=seconds_between,
        sparkline=charts.draw_sparkline,
        progress_bar=charts.draw_progress_bar,
    )
    return environment

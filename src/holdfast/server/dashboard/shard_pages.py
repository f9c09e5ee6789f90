"""Pages over all shards: read or change all of them at once, and show the page of each as a section.

A shard that does not answer is named on the page, never left out silently.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from starlette.exceptions import HTTPException

from holdfast.errors import DatabaseError, DatabaseUnavailableError, NotFoundError
from holdfast.server.dashboard.registry import PAGE_ROUTES, ShardHeaderFunction
from holdfast.server.dashboard.site import (
    PAGE_READ_TIMEOUT_S,
    ActionRequest,
    DashboardPage,
    DashboardSite,
    PageFunction,
    PageRequest,
)

T = TypeVar("T")
SHARD_READ_TIMEOUT_S: Final = 5.0
SHARD_CHANGE_TIMEOUT_S: Final = 20.0
_ID_ATTRIBUTE: Final = re.compile(r' (id|for|list|aria-labelledby|aria-describedby|aria-controls)="([^"]+)"')
_late_tasks: set[asyncio.Task[Any]] = set()  # keeps tasks that nobody waits for until they end


class AllShardsSite(DashboardSite):
    """The site that shows all shards. Its services are those of the first shard."""

    async def load_page(self, request: PageRequest, function: PageFunction) -> DashboardPage:
        """Load a page that reads all shards itself, or build one with a section for each shard."""
        route = PAGE_ROUTES.get(request.path)
        if route is None or route.all_shards != "sections":
            return await super().load_page(request, function)
        return await _load_sections(request, function, route.build_shard_header)


@dataclass(frozen=True)
class ShardSection:
    """The part of a page that shows one shard. `html` is None if the shard did not answer."""

    number: int
    html: str | None


async def read_all_shards(
    request: PageRequest,
    read: Callable[[PageRequest], Awaitable[T]],
    *,
    statement_timeout_s: float = PAGE_READ_TIMEOUT_S,
) -> tuple[dict[int, T], list[int]]:
    """Read from all shards at once, each in its own transaction. Return what was read, and missing shards."""

    async def read_one(own: PageRequest) -> T:
        async with own.site.transaction(timeout_s=statement_timeout_s) as connection:
            own.connection = connection
            return await read(own)

    return await _ask_all_shards(request, read_one, max(SHARD_READ_TIMEOUT_S, statement_timeout_s))


async def change_all_shards(
    action: ActionRequest, change: Callable[[ActionRequest], Awaitable[T]]
) -> tuple[dict[int, T], list[int]]:
    """Make a change on all shards, each in its own transaction. Return the results, and missing shards."""

    async def change_one(own: PageRequest) -> T:
        async with own.site.transaction(timeout_s=SHARD_CHANGE_TIMEOUT_S, write=True) as connection:
            own.connection = connection
            return await change(ActionRequest(own, action.form, connection))

    return await _ask_all_shards(action.request, change_one, SHARD_CHANGE_TIMEOUT_S)


async def _ask_all_shards(
    request: PageRequest, ask: Callable[[PageRequest], Awaitable[T]], timeout_s: float
) -> tuple[dict[int, T], list[int]]:
    async def ask_one(number: int, site: DashboardSite) -> T:
        return await ask(replace(request, site=site, base=f"{request.base}/shards/{number}"))

    tasks = {
        number: asyncio.create_task(ask_one(number, site))
        for number, site in request.site.shard_sites.items()
    }
    done, late = await asyncio.wait(tasks.values(), timeout=timeout_s)
    for task in late:  # not awaited: a frozen server also holds up the end of its statement
        _late_tasks.add(task)
        task.add_done_callback(_late_tasks.discard)
        task.cancel()
    results: dict[int, T] = {}
    for number, task in tasks.items():
        if task not in done:
            continue
        error = task.exception()
        if error is None:
            results[number] = task.result()
        elif not isinstance(error, (DatabaseError, TimeoutError)):
            raise error
    if not results:
        raise DatabaseUnavailableError("No shard answered.")
    return results, [number for number in tasks if number not in results]


async def _load_sections(
    request: PageRequest, function: PageFunction, build_header: ShardHeaderFunction | None
) -> DashboardPage:
    """Build a page with the page of each shard. Shards that do not have what it shows are left out."""

    async def load_one(own: PageRequest) -> DashboardPage | Exception:
        try:
            return await own.site.load_page(own, function)
        except NotFoundError as error:
            return error
        except HTTPException as error:
            if error.status_code != 404:
                raise
            return error

    def render_one(number: int, page: DashboardPage) -> ShardSection:
        site, base = request.site.shard_sites[number], f"{request.base}/shards/{number}"
        own = replace(request, site=site, base=base)
        return ShardSection(number, _mark_html(site.render_content(own, page), number))

    answers, missing = await _ask_all_shards(request, load_one, SHARD_READ_TIMEOUT_S)
    pages = {number: page for number, page in answers.items() if isinstance(page, DashboardPage)}
    if not pages and not missing:
        raise next(error for error in answers.values() if isinstance(error, Exception))
    sections = [render_one(number, page) for number, page in pages.items()]
    sections += [ShardSection(number, None) for number in missing]
    header = build_header(request, pages) if build_header and pages else None
    values: Mapping[str, Any] = {
        "header": request.site.render_content(request, header) if header else "",
        "sections": sorted(sections, key=lambda section: section.number),
        "other_shards": [number for number in answers if number not in pages],
    }
    title = next((page.title for page in pages.values()), "Shards")
    live = any(page.live for page in pages.values()) or not pages
    return DashboardPage("shard_sections.html", title, values, live=live)


def _mark_html(html: str, number: int) -> str:
    """Add the shard to the heading of its part of a page, and to ids, which must be unique on a page.

    Values in the HTML are escaped, so that a double quote is always one of an attribute.
    """

    def add_number(match: re.Match[str]) -> str:
        return f' {match[1]}="' + " ".join(f"{each}-shard-{number}" for each in match[2].split()) + '"'

    html = _ID_ATTRIBUTE.sub(add_number, html)
    return re.sub(r"<h1([^>]*)>", rf"<h2\1>Shard {number}: ", html).replace("</h1>", "</h2>")

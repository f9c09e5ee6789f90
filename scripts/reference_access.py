"""Build docs/reference/access.md: who may call each route, page and action, and what the answer reveals."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections import defaultdict
from pathlib import Path
from typing import Any, get_args, get_origin

from starlette.routing import BaseRoute

from holdfast import systems
from holdfast.server.api.app import _list_built_in_routes as list_built_in_routes
from holdfast.server.api.openapi import list_declared_operations
from holdfast.server.api.operations import ApiOperation
from holdfast.server.dashboard import pages
from holdfast.server.dashboard.registry import ACTION_ROUTES, DOWNLOAD_ROUTES, PAGE_ROUTES, DashboardRoute
from holdfast.server.dashboard.roles import PERMISSIONS_BY_ROLE
from holdfast.systems.front_door import create_front_door_routes

FUNCTIONS_DIR = Path(__file__).resolve().parent.parent / "src" / "holdfast" / "engine" / "functions"
COLUMN_GRANT_PATTERN = re.compile(
    r"call holdfast\.grant_select_columns\(\s*'(\w+)',\s*'(\w+)',(.*?)\);", re.DOTALL
)
# The tables and views of systems that users reach in SQL, with their rights. A test compares this list with the
# catalogue of a database in which every system is installed.
SYSTEM_RELATIONS: dict[str, dict[str, str]] = {
    "bookmarks": {"bookmark_imports": "select", "bookmarks": "select"},
    "clips": {"clip_passages": "select", "clipnest_videos": "select, insert, delete"},
    "exports": {
        "documents": "select, insert, update, delete",
        "export_batch_items": "select",
        "export_batches": "select",
        "export_history": "select, insert, delete",
        "export_jobs": "select",
        "export_requests": "select",
        "export_usage": "select",
    },
    "media": {"share_progress": "select", "share_usage": "select", "shares": "select"},
    "reports": {"jobs": "select", "job_artifacts": "select", "reports": "select"},
}
INTRODUCTION = """\
Who may call each route, page and action, and what the answer reveals. Nothing else is reachable: a route without a declaration does not exist,
a page without a permission cannot be registered, and a function that is not granted cannot be called.

- **anyone**: no token is needed. **users**: a token of a user, for that user's own objects. Objects of other users look like missing ones (404).
- **services**: a service key with the scope in the table. A key with the scope sees the objects of all users. Users get 403.
- What users see of a job, a task and a file leaves out errors' tracebacks, names of workers and machines, and object keys.
- SQL functions, in SQL and over `/rest/v1/rpc`: [every function with who may call it](sql-functions.md).
- How this is attacked: [threat model](../operate/security.md#threat-model), `make attack`.
"""


def build_access_page(generated_note: str) -> str:
    """Return the page: routes of the API and of each system, the dashboard, and tables that users read."""
    lines = ["# Access", generated_note, INTRODUCTION]
    lines += _build_route_section("Routes of the API", list_built_in_routes())
    for name, routes in list_system_routes().items():
        lines += _build_route_section(f"Routes of the system {name}", routes)
    lines += _build_route_section("Routes of the front door", create_front_door_routes())
    lines += _build_dashboard_section()
    lines += _build_table_section()
    return "\n".join(lines).rstrip() + "\n"


def list_system_routes() -> dict[str, list[BaseRoute]]:
    """Return the routes of every system of the package, by its name."""
    routes_by_system: dict[str, list[BaseRoute]] = {}
    for module in pkgutil.iter_modules(systems.__path__):
        package = importlib.import_module(f"{systems.__name__}.{module.name}")
        if hasattr(package, "mount"):
            routes_by_system[module.name] = package.mount()["routes"]
    return routes_by_system


def _build_route_section(title: str, routes: list[BaseRoute]) -> list[str]:
    rows = [
        f"| `{method.upper()} {path}` | {_format_callers(operation)} | {operation.summary} | {describe_answer(operation)} |"
        for path, method, operation in list_declared_operations(routes)
    ]
    return [
        f"## {title}",
        "",
        "| route | who | what it does | what it reveals |",
        "|---|---|---|---|",
        *rows,
        "",
    ]


def _format_callers(operation: ApiOperation) -> str:
    scope = f"services (`{operation.scope}`)" if operation.scope else "services"
    if operation.access == "service":
        return scope
    if operation.access in {"public", "anyone"} and operation.scope is None:
        return "anyone"
    return f"users, {scope}"


def describe_answer(operation: ApiOperation) -> str:
    """Return what a successful response contains: its type with its fields, or its media type."""
    if operation.response is not None:
        return _describe_type(operation.response)
    if operation.status == 204:
        return "nothing"
    if operation.media_type == "text/event-stream":
        return "events of the object"
    if operation.media_type != "application/json":
        return f"`{operation.media_type}`"
    return "the object" if operation.status != 302 else "a signed link"


def _describe_type(response: Any) -> str:
    origin = get_origin(response)
    if origin is list:
        return f"list of {_describe_type(get_args(response)[0])}"
    fields = getattr(response, "__struct_fields__", None)
    if inspect.isclass(response) and fields:
        return f"`{response.__name__}`: {', '.join(fields)}"
    return "JSON"


def _build_dashboard_section() -> list[str]:
    pages.register_pages()
    lines = [
        "## Dashboard",
        "",
        "A browser needs a session; without one it gets the login page. Each page needs a permission, and each role has a set of them. Actions",
        "also need the form token of the session and must come from the dashboard's own pages.",
        "",
        "| page or action | permission | roles |",
        "|---|---|---|",
    ]
    for label, routes in (("GET", {**PAGE_ROUTES, **DOWNLOAD_ROUTES}), ("POST", ACTION_ROUTES)):
        lines += [_format_dashboard_row(label, route) for _, route in sorted(routes.items())]
    return [*lines, ""]


def _format_dashboard_row(method: str, route: DashboardRoute) -> str:
    roles = [role for role, permissions in PERMISSIONS_BY_ROLE.items() if route.permission in permissions]
    return f"| `{method} /dashboard{route.path}` | `{route.permission}` | {', '.join(roles)} |"


def list_readable_columns(role: str = "authenticated") -> dict[str, list[str]]:
    """Return the columns of the engine's tables that a role may read, from the grants in the SQL files."""
    columns: dict[str, list[str]] = defaultdict(list)
    for path in sorted(FUNCTIONS_DIR.rglob("*.sql")):
        text = "\n".join(
            line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("--")
        )
        for granted_role, table, names in COLUMN_GRANT_PATTERN.findall(text):
            if granted_role == role:
                columns[table] += re.findall(r"'(\w+)'", names)
    return dict(columns)


def _build_table_section() -> list[str]:
    lines = [
        "## Tables",
        "",
        "What users (role `authenticated` with a `sub`) reach in SQL: their own rows only, by row security that is forced on every table. Users write",
        "no table of the schema `holdfast`. `anon` reaches nothing.",
        "",
        "| table | users may | columns |",
        "|---|---|---|",
    ]
    lines += [
        f"| `holdfast.{table}` | select | {', '.join(columns)} |"
        for table, columns in sorted(list_readable_columns().items())
    ]
    for system, relations in SYSTEM_RELATIONS.items():
        lines += [f"| `{name}` ({system}) | {rights} | all |" for name, rights in sorted(relations.items())]
    return lines

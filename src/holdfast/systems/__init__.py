"""Systems, the applications bundled with Holdfast: bookmarks, clips, document export, media and reports.

The systems use only public names of Holdfast, so you can build your own systems in the same way:
docs/guide/build-a-system.md.

    app = create_app(settings, **mount(exports, reports))

Each system is a package with `mount` (arguments for `create_app`), `install` and `install_if_needed` (its
tables), and `tasks` and `lifespan` for a worker.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from holdfast.systems.owned_files import create_owned_link, find_visible_files
    from holdfast.systems.page_routes import create_page_routes
    from holdfast.systems.request_context import get_systems_schema, require_owner_id
    from holdfast.systems.tables import install_tables, qualify_tables
    from holdfast.systems.user_items import UserItem

__all__ = [
    "AppArguments",
    "System",
    "UserItem",
    "create_owned_link",
    "create_page_routes",
    "find_visible_files",
    "get_systems_schema",
    "install_tables",
    "mount",
    "qualify_tables",
    "require_owner_id",
]

# These need the extra `server`, so they are imported when they are first used.
_MODULE_BY_NAME = {
    "UserItem": "holdfast.systems.user_items",
    "create_owned_link": "holdfast.systems.owned_files",
    "create_page_routes": "holdfast.systems.page_routes",
    "find_visible_files": "holdfast.systems.owned_files",
    "get_systems_schema": "holdfast.systems.request_context",
    "install_tables": "holdfast.systems.tables",
    "qualify_tables": "holdfast.systems.tables",
    "require_owner_id": "holdfast.systems.request_context",
}

AppArguments: TypeAlias = dict[str, Any]
_APP_ARGUMENT_NAMES = ("routes", "tasks", "job_types", "metric_sources")


class System(Protocol):
    """A bundled application, or one of your own, that `mount` can add to the API."""

    def mount(self) -> AppArguments:
        """Return the routes, tasks and job types of the system as keyword arguments of `create_app`."""
        ...


def mount(*systems: System | AppArguments) -> AppArguments:
    """Combine several bundled applications into keyword arguments of `create_app`.

    Pass packages of systems or results of their `mount`: `mount(exports.mount(limits), reports)`. If one of
    them has a page, the application gets a front door too: a page at `/` with a tile for each system, and
    `/my-jobs`, the page of a user's jobs and files.
    """
    mounted = [system if isinstance(system, dict) else system.mount() for system in systems]
    combined: AppArguments = {
        name: [item for arguments in mounted for item in arguments.get(name, ())]
        for name in _APP_ARGUMENT_NAMES
    }
    if combined["routes"]:
        from holdfast.systems.front_door import add_front_door  # noqa: PLC0415  (needs the extra `server`)

        combined["routes"] = add_front_door(combined["routes"])
    return combined


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    module = _MODULE_BY_NAME.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)

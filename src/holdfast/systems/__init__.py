"""Ready-made systems: document export and multi-document reports. They use public names only.

    app = create_app(settings, **mount(exports, reports))

Each system is a package with `mount` (what `create_app` is given), `install` and `ensure` (its tables), and
`tasks` and `lifespan` for a worker.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

Mounted: TypeAlias = dict[str, Any]
_PARTS = ("routes", "tasks", "types")


class System(Protocol):
    def mount(self) -> Mounted: ...


def mount(*systems: System | Mounted) -> Mounted:
    """Several systems in one application: the packages, or what their `mount` answered."""
    given = [each if isinstance(each, dict) else each.mount() for each in systems]
    return {part: [item for each in given for item in each.get(part, ())] for part in _PARTS}

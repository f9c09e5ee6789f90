"""The settings page: display preferences of a browser, and what each role may do."""

from __future__ import annotations

from typing import Any, NamedTuple

from starlette.responses import Response

from holdfast.server.dashboard.flash import redirect_with_message
from holdfast.server.dashboard.registry import register_action, register_page
from holdfast.server.dashboard.roles import ALL_PERMISSIONS, PERMISSIONS_BY_ROLE
from holdfast.server.dashboard.site import (
    PREFERENCE_COOKIE_LIFETIME_S,
    ActionRequest,
    DashboardPage,
    PageRequest,
)


class PreferenceField(NamedTuple):
    """A display preference: its label, and its options as value and label. The first is the default."""

    label: str
    options: dict[str, str]


DISPLAY_PREFERENCES = {
    "theme": PreferenceField("Theme", {"system": "System", "light": "Light", "dark": "Dark"}),
    "time": PreferenceField(
        "Times",
        {"relative": "Relative (5m ago)", "local": "Absolute (your time zone)", "utc": "Absolute (UTC)"},
    ),
    "density": PreferenceField("Row height", {"normal": "Normal", "dense": "Compact"}),
    "keys": PreferenceField("Keyboard shortcuts", {"on": "On", "off": "Off"}),
}


@register_page("/settings", "settings.edit", all_shards="first")
async def show_settings(request: PageRequest) -> DashboardPage:
    chosen: dict[str, Any] = {
        name: request.cookies.get(f"holdfast_{name}", next(iter(preference.options)))
        for name, preference in DISPLAY_PREFERENCES.items()
    }
    return DashboardPage(
        "settings.html",
        "Settings",
        {
            "preferences": DISPLAY_PREFERENCES,
            "chosen": chosen,
            "roles": PERMISSIONS_BY_ROLE,
            "permissions": ALL_PERMISSIONS,
        },
        live=False,
    )


@register_action("/settings", "settings.edit")
async def save_settings(action: ActionRequest) -> Response:
    """Save the display preferences of this browser in cookies."""
    response = redirect_with_message(
        action.request.site.signer, action.request.base, "/settings", "Settings saved."
    )
    for name, preference in DISPLAY_PREFERENCES.items():
        value = action.get_text(name)
        if value in preference.options:
            response.set_cookie(
                f"holdfast_{name}",
                value,
                max_age=PREFERENCE_COOKIE_LIFETIME_S,
                samesite="lax",
                path=action.request.base or "/",
            )
    return response

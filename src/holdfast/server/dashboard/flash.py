"""The message that is shown once after an action, with a button that undoes it where that is possible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from starlette.responses import RedirectResponse, Response

from holdfast.server.dashboard.sessions import FLASH_COOKIE, CookieSigner

FLASH_MESSAGE_LIFETIME_S = 30
MAX_FLASH_COOKIE_CHARS = 3500  # browsers drop cookies of more than 4 KB


class UndoAction(msgspec.Struct, frozen=True):
    """The form that undoes an action: the path of another action, and the fields to send to it."""

    path: str
    fields: Mapping[str, str]


class ActionResult(NamedTuple):
    """Where to redirect to after an action, what to say there, and how to undo the action."""

    path: str
    message: str
    undo: UndoAction | None = None


class FlashMessage(msgspec.Struct, frozen=True):
    """The message after an action."""

    message: str
    undo: UndoAction | None = None


def redirect_with_message(
    signer: CookieSigner, base: str, path: str, message: str, undo: UndoAction | None = None
) -> Response:
    """Redirect to a dashboard path that shows the message once, with a button to undo the action."""
    response = RedirectResponse(base + path, status_code=303)
    if message:
        value = signer.sign_value("flash", FlashMessage(message, undo))
        if len(value) > MAX_FLASH_COOKIE_CHARS:
            value = signer.sign_value("flash", FlashMessage(message[:1000]))
        response.set_cookie(
            FLASH_COOKIE,
            value,
            max_age=FLASH_MESSAGE_LIFETIME_S,
            httponly=True,
            samesite="lax",
            path=base or "/",
        )
    return response


def read_flash_message(signer: CookieSigner, cookie: str | None) -> FlashMessage | None:
    """Return the message in a flash cookie, or None if there is none or its signature is wrong."""
    value: Any = signer.verify_value("flash", cookie)
    return msgspec.convert(value, FlashMessage) if isinstance(value, dict) else None

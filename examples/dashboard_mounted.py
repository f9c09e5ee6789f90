"""The dashboard inside your own application, for your own users."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.routing import Mount

from holdfast.server.api import create_app
from holdfast.server.dashboard import Visitor, create_dashboard

work = create_app()


async def who(request: HTTPConnection) -> Visitor | None:
    user = request.session.get("user")  # whatever your application knows its users by
    if user is None:
        return None  # nobody gets in
    if user["staff"]:
        return Visitor(user["name"], "operator")
    return Visitor(user["name"], "support", tenant=user["company"])


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncGenerator[None]:
    async with work.router.lifespan_context(work):
        yield


dashboard = create_dashboard(work.state.holdfast, roles=who, environment="prod")
app = Starlette(routes=[Mount("/ops", dashboard), Mount("/work", work)], lifespan=lifespan)

"""Mount the dashboard in your own application, for the users of your application."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.routing import Mount

from holdfast.server import DashboardUser, create_app, create_dashboard

jobs_api = create_app()


async def identify_user(request: HTTPConnection) -> DashboardUser | None:
    user = request.session.get("user")  # however your application stores its users
    if user is None:
        return None  # no access
    if user["staff"]:
        return DashboardUser(user["name"], "operator")
    return DashboardUser(user["name"], "support", tenant=user["company"])


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncGenerator[None]:
    async with jobs_api.router.lifespan_context(jobs_api):
        yield


dashboard = create_dashboard(jobs_api.state.holdfast, identify_user=identify_user, environment="prod")
app = Starlette(routes=[Mount("/ops", dashboard), Mount("/jobs", jobs_api)], lifespan=lifespan)

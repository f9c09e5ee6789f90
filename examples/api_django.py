"""Serve the HTTP API beside a Django project, under /tasks: one ASGI application for both."""

# pyright: basic, reportMissingTypeStubs=false, reportArgumentType=false
from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path
from starlette.applications import Starlette
from starlette.routing import Mount

from api_reports import app as jobs_api

if not settings.configured:  # your project has a settings module
    settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="not for real")
    django.setup()


def home(_: HttpRequest) -> HttpResponse:
    return HttpResponse("home")


urlpatterns = [path("", home)]


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncGenerator[None]:
    async with jobs_api.router.lifespan_context(jobs_api):  # closes streams and connections
        yield


app = Starlette(routes=[Mount("/tasks", jobs_api), Mount("/", get_asgi_application())], lifespan=lifespan)

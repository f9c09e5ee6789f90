"""Let Django and the jobs use the database of the test."""

import asyncio
import os

import pytest

os.environ["DATABASE_URL"] = "postgresql://replaced-by-the-fixture/below"
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")

import tasks  # noqa: F401  (sets up Django)
from django.core.management import call_command
from django.db import connections
from psycopg.conninfo import conninfo_to_dict

from holdfast.testing import Holdfast


@pytest.fixture(autouse=True)
async def own_database(hf: Holdfast) -> None:
    parts = conninfo_to_dict(hf.url)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    connections.settings["default"].update({name: parts.get(part) for name, part in names.items()})
    # Django's connections belong to one thread each, so that every test starts with new ones.
    await asyncio.to_thread(call_command, "migrate", verbosity=0)

"""Use one database for the application and its jobs, so that both commit together."""

import os
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

if "DATABASE_URL" not in os.environ:
    raise SystemExit("Set DATABASE_URL first: export DATABASE_URL=$(holdfast db url)")
connection = conninfo_to_dict(os.environ["DATABASE_URL"])

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = os.environ.get("SECRET_KEY", "only for development")
DEBUG = "SECRET_KEY" not in os.environ
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
INSTALLED_APPS = ["notes"]
MIDDLEWARE = ["django.middleware.common.CommonMiddleware"]
ROOT_URLCONF = "project.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": connection.get("dbname"),
        "USER": connection.get("user"),
        "PASSWORD": connection.get("password"),
        "HOST": connection.get("host"),
        "PORT": connection.get("port"),
    }
}

"""All settings in one frozen object. Only this module reads the environment.

A setting has the same name everywhere: `database_url` is the field of `Settings`, `HOLDFAST_DATABASE_URL`
the environment variable, `database_url` the key under `[tool.holdfast]` in pyproject.toml and
`--database-url` the command-line option. The command line overrides the environment, which overrides
pyproject.toml, which overrides the defaults. `DATABASE_URL` without the prefix works too, because most
hosting platforms set it.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, cast, get_args

from holdfast.errors import SettingsError
from holdfast.redaction import MASK_TEXT

AutoSwitch = Literal["auto", "on", "off"]
LogFormat = Literal["human", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogCaptureLevel = Literal["off", "debug", "info", "warning", "error"]
OnOffSwitch = Literal["off", "on"]

ENVIRONMENT_PREFIX = "HOLDFAST_"


class Secret(str):
    """A string that prints as `•••`, for passwords and keys. `reveal()` returns the value.

    >>> from holdfast import Secret
    >>> password = Secret("hunter2")
    >>> print(password)
    •••
    >>> password.reveal()
    'hunter2'
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Secret({MASK_TEXT!r})"

    def __str__(self) -> str:
        return MASK_TEXT

    def __format__(self, spec: str) -> str:
        return MASK_TEXT

    def reveal(self) -> str:
        """Return the secret value as a plain string."""
        return "".join(self)


def define_setting(default: Any, help: str) -> Any:  # noqa: A002
    """Declare a field of `Settings` with its default and its help text."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings. `load_settings()` reads them from the environment and pyproject.toml.

    >>> from holdfast import Secret, Settings
    >>> settings = Settings(database_url=Secret("postgresql://localhost/app"), pool_size=4)
    >>> settings.pool_size
    4
    """

    database_url: Secret | None = define_setting(
        None, "Set the URL of the PostgreSQL database (default: the embedded PostgreSQL in `home`)"
    )
    home: Path = define_setting(
        Path(".holdfast"), "Set the folder for the embedded database and local files (default: .holdfast)"
    )
    pg_bin: Path | None = define_setting(
        None,
        "Set the folder of postgres and initdb for the embedded database (default: search for it)",
    )
    pool_size: int = define_setting(
        8, "Set the maximum number of pooled database connections per event loop (default: 8)"
    )
    statement_cache: AutoSwitch = define_setting(
        "auto",
        "Use prepared statements; `auto` turns them off behind a transaction pooler (default: auto)",
    )
    listen: AutoSwitch = define_setting(
        "auto",
        "Use LISTEN/NOTIFY to wake up workers; `off` polls, `auto` detects a pooler (default: auto)",
    )
    connect_timeout: timedelta = define_setting(
        timedelta(seconds=10), "Set the maximum time to wait for a database connection (default: 10s)"
    )
    call_timeout: timedelta = define_setting(
        timedelta(seconds=30), "Set the maximum duration of one database call (default: 30s)"
    )
    lock_timeout: timedelta = define_setting(
        timedelta(milliseconds=800),
        "Set the maximum time that one migration step waits for a table lock (default: 800ms)",
    )
    storage_url: Secret | None = define_setting(
        None,
        "Set the folder or the s3://, gs:// or az:// URL where files are stored (default: home/files)",
    )
    signing_key: Secret | None = define_setting(
        None, "Set the key that signs download links (default: a generated key, stored in `home`)"
    )
    log_format: LogFormat = define_setting(
        "human", "Choose the log format: `human` for terminals, `json` for log collectors (default: human)"
    )
    log_level: LogLevel = define_setting(
        "info", "Set the minimum level of Holdfast's own log lines (default: info)"
    )
    capture_logs: LogCaptureLevel = define_setting(
        "off", "Store the `logging` output of tasks with the job, from this level up (default: off)"
    )
    tracing: OnOffSwitch = define_setting(
        "off", "Create OpenTelemetry spans from submit to run; needs holdfast[telemetry] (default: off)"
    )
    sentry_dsn: Secret | None = define_setting(
        None, "Report exceptions of tasks to this Sentry DSN; needs holdfast[telemetry] (default: none)"
    )
    health_host: str = define_setting(
        "127.0.0.1", "Set the address on which workers serve health checks and metrics (default: 127.0.0.1)"
    )
    health_port: int | None = define_setting(
        None,
        "Set the port on which workers serve health checks and metrics; 0 picks a free port (default: none)",
    )
    api_host: str = define_setting(
        "127.0.0.1", "Set the address that the API listens on (default: 127.0.0.1)"
    )
    api_port: int = define_setting(
        8700, "Set the port that the API listens on; 0 picks a free port (default: 8700)"
    )
    service_key: Secret | None = define_setting(
        None, "Set a key with all rights, which services send as a bearer token (default: none)"
    )
    jwt_secret: Secret | None = define_setting(
        None, "Set the HS256 secret that verifies the JWTs of users (default: none)"
    )
    jwt_jwks: str | None = define_setting(
        None, "Set the URL or file of the JWKS that verifies the JWTs of users (default: none)"
    )
    jwt_issuer: str | None = define_setting(
        None, "Set the issuer (`iss`) that the JWTs of users must have (default: any issuer)"
    )
    jwt_audience: str = define_setting(
        "authenticated", "Set the audience (`aud`) that the JWTs of users must have (default: authenticated)"
    )
    jwt_cookie: str | None = define_setting(
        None,
        "Set the name of a cookie that may carry the JWT of a user (default: none, only the bearer header)",
    )
    cors_origins: str = define_setting(
        "", "Set the origins, comma-separated, that CORS allows to call the API (default: none)"
    )
    api_body_limit: int = define_setting(
        1024 * 1024, "Set the maximum size of an API request body in bytes (default: 1048576)"
    )
    api_timeout: timedelta = define_setting(
        timedelta(seconds=30),
        "Set the maximum duration of an API request, except event streams (default: 30s)",
    )
    api_rate: int = define_setting(
        100, "Set the rate limit of API requests per second for one user or key (default: 100)"
    )
    api_burst: int = define_setting(
        400, "Set how many API requests one user or key may make in a burst (default: 400)"
    )
    user_jobs: int = define_setting(
        1000, "Set the maximum number of unfinished jobs of one user (default: 1000)"
    )
    user_streams: int = define_setting(
        16,
        "Set the maximum number of open event streams of one user; ten times that for services (default: 16)",
    )
    api_streams: int = define_setting(
        5000, "Set the maximum number of open event streams of one API process (default: 5000)"
    )
    rpc_schemas: str = define_setting(
        "pgmq_public,holdfast",
        "Set the schemas, comma-separated, that /rest/v1/rpc may call (default: pgmq_public,holdfast)",
    )
    egress_allow: str = define_setting(
        "", "Set the private networks or hosts, comma-separated, that webhooks may call (default: none)"
    )
    systems_schema: str = define_setting(
        "public",
        "Set the database schema for the tables of the bundled applications (systems) (default: public)",
    )
    template_folder: Path | None = define_setting(
        None, "Set the folder of your own templates for exported documents (default: none)"
    )
    font_folders: str = define_setting(
        "", "Set the folders, comma-separated, of additional fonts for documents (default: none)"
    )
    text_url: str | None = define_setting(
        None,
        "Set the URL of an OpenAI-compatible text generation server (default: local text generation)",
    )
    text_key: Secret | None = define_setting(None, "Set the API key for `text_url` (default: none)")
    text_model: str = define_setting("gpt-5-mini", "Set the model that `text_url` uses (default: gpt-5-mini)")
    speech_url: str | None = define_setting(
        None,
        "Set the URL of an OpenAI-compatible text-to-speech server (default: local speech synthesis)",
    )
    speech_key: Secret | None = define_setting(None, "Set the API key for `speech_url` (default: none)")
    speech_model: str = define_setting(
        "gpt-4o-mini-tts", "Set the model that `speech_url` uses (default: gpt-4o-mini-tts)"
    )
    speech_voice: str = define_setting("alloy", "Set the voice that `speech_url` uses (default: alloy)")

    def __post_init__(self) -> None:
        minimums = {
            "pool_size": 1,
            "api_port": 0,
            "api_body_limit": 1024,
            "api_rate": 1,
            "api_burst": 1,
            "user_jobs": 1,
            "user_streams": 1,
            "api_streams": 1,
        }
        for name, minimum in minimums.items():
            value = getattr(self, name)
            if value < minimum:
                raise SettingsError(f"{name} must be at least {minimum}, got {value}.", field=name)
        if self.health_port is not None and not 0 <= self.health_port <= 65535:
            raise SettingsError(
                f"health_port must be between 0 and 65535, got {self.health_port}.", field="health_port"
            )
        if self.api_port > 65535:
            raise SettingsError(f"api_port must be at most 65535, got {self.api_port}.", field="api_port")


SettingSource = Mapping[str, object]


def load_settings(
    overrides: SettingSource | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Settings:
    """Read settings from `overrides`, the environment and the nearest pyproject.toml, in this order.

    >>> from holdfast import load_settings
    >>> load_settings({"pool_size": 4}).pool_size
    4
    """
    environ = os.environ if environ is None else environ
    merged: dict[str, object] = {}
    for source in (
        _read_pyproject_settings(folder or Path.cwd()),
        _read_environment_settings(environ),
        dict(overrides or {}),
    ):
        merged.update({name: value for name, value in source.items() if value is not None})
    known = {f.name: f for f in fields(Settings)}
    values: dict[str, Any] = {}
    for name, raw in merged.items():
        if name not in known:
            raise SettingsError(
                f"Setting {name!r} does not exist{_format_setting_suggestion(name, known)}",
                fix=f"Settings: {', '.join(known)}.",
                field=name,
            )
        values[name] = _convert_setting_value(name, str(known[name].type), raw)
    return Settings(**values)


def _format_setting_suggestion(name: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else "."


def _read_environment_settings(environ: Mapping[str, str]) -> dict[str, object]:
    values: dict[str, object] = {}
    if environ.get("DATABASE_URL"):
        values["database_url"] = environ["DATABASE_URL"]
    for f in fields(Settings):
        value = environ.get(ENVIRONMENT_PREFIX + f.name.upper())
        if value:
            values[f.name] = value
    return values


def _read_pyproject_settings(folder: Path) -> dict[str, object]:
    for parent in (folder, *folder.parents):
        path = parent / "pyproject.toml"
        if not path.is_file():
            continue
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SettingsError(f"{path} is not valid TOML: {error}.", fix="Correct the file.") from error
        return cast("dict[str, object]", table.get("tool", {}).get("holdfast", {}))
    return {}


_SECONDS_BY_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION_PATTERN = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|s|m|h|d)")


def parse_duration(text: str) -> timedelta:
    """Parse a duration such as `90s`, `1.5h`, `250ms` or `7d`."""
    match = _DURATION_PATTERN.fullmatch(text.strip())
    if not match:
        raise ValueError("write a number and a unit, as in 250ms, 90s, 5m, 1.5h or 7d")
    return timedelta(seconds=float(match["number"]) * _SECONDS_BY_UNIT[match["unit"]])


SETTING_CHOICES: dict[str, tuple[str, ...]] = {
    "AutoSwitch": get_args(AutoSwitch),
    "LogFormat": get_args(LogFormat),
    "LogLevel": get_args(LogLevel),
    "LogCaptureLevel": get_args(LogCaptureLevel),
    "OnOffSwitch": get_args(OnOffSwitch),
}


def _convert_setting_value(name: str, kind: str, raw: object) -> object:
    kind = kind.removesuffix(" | None")
    try:
        if kind in SETTING_CHOICES:
            if str(raw) not in SETTING_CHOICES[kind]:
                raise ValueError(f"choose one of {', '.join(SETTING_CHOICES[kind])}")
            return str(raw)
        if kind == "timedelta":
            return raw if isinstance(raw, timedelta) else parse_duration(str(raw))
        if kind == "int":
            return int(str(raw))
        plain = raw.reveal() if isinstance(raw, Secret) else str(raw)
        return {"Path": Path, "Secret": Secret, "str": str}[kind](plain)
    except ValueError as error:
        shown = MASK_TEXT if kind == "Secret" else repr(raw)
        raise SettingsError(
            f"The setting {name} has the invalid value {shown}: {error}.", field=name
        ) from error


def redact_url(url: str) -> str:
    """Return a URL with its password masked."""
    # A URL parser would end the host at an unescaped / or ? in the password, so this goes up to the last @.
    url = re.sub(r"(://[^:/?#@]*):.*@", rf"\1:{MASK_TEXT}@", url, flags=re.DOTALL)
    return re.sub(r"([?&]password=)[^&#]*", rf"\1{MASK_TEXT}", url)

"""All settings in one frozen object. No other module reads the environment.

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

AutoSwitch = Literal["auto", "on", "off"]
LogFormat = Literal["human", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
CaptureLevel = Literal["off", "debug", "info", "warning", "error"]
OnOffSwitch = Literal["off", "on"]

ENVIRONMENT_PREFIX = "HOLDFAST_"
REDACTED_TEXT = "•••"


class Secret(str):
    """A string that prints as dots. `reveal()` returns its value.

    >>> from holdfast import Secret
    >>> password = Secret("hunter2")
    >>> print(password)
    •••
    >>> password.reveal()
    'hunter2'
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Secret({REDACTED_TEXT!r})"

    def __str__(self) -> str:
        return REDACTED_TEXT

    def __format__(self, spec: str) -> str:
        return REDACTED_TEXT

    def reveal(self) -> str:
        """Return the value."""
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
        "Set the folder with postgres and initdb for the embedded database (default: the installed wheel)",
    )
    pool_size: int = define_setting(
        8, "Set the maximum number of connections per event loop, besides one for LISTEN (default: 8)"
    )
    statement_cache: AutoSwitch = define_setting(
        "auto",
        "Use prepared statements; choose `off` behind a transaction pooler (default: auto, detects a pooler)",
    )
    listen: AutoSwitch = define_setting(
        "auto",
        "Wake up by LISTEN/NOTIFY; `off` polls instead, as behind a transaction pooler (default: auto)",
    )
    connect_timeout: timedelta = define_setting(
        timedelta(seconds=10), "Set the maximum time to wait for a connection (default: 10s)"
    )
    call_timeout: timedelta = define_setting(
        timedelta(seconds=30), "Set the maximum duration of one database call (default: 30s)"
    )
    lock_timeout: timedelta = define_setting(
        timedelta(milliseconds=800),
        "Set the maximum time that a migration step waits for a lock; others wait behind it (default: 800ms)",
    )
    storage_url: Secret | None = define_setting(
        None,
        "Set where files are stored: a folder, or an s3://, gs:// or az:// bucket (default: home/files)",
    )
    signing_key: Secret | None = define_setting(
        None, "Set the key that signs links to files (default: a generated key in `home`)"
    )
    log_format: LogFormat = define_setting(
        "human", "Choose the log format: `human` for terminals, `json` for log collectors (default: human)"
    )
    log_level: LogLevel = define_setting("info", "Set the lowest level that is logged (default: info)")
    capture_logs: CaptureLevel = define_setting(
        "off", "Store what tasks log with the `logging` module, from this level on (default: off)"
    )
    tracing: OnOffSwitch = define_setting(
        "off", "Create OpenTelemetry spans from submit to run; needs holdfast[telemetry] (default: off)"
    )
    sentry_dsn: Secret | None = define_setting(
        None, "Report exceptions of tasks to this Sentry DSN; needs holdfast[telemetry] (default: none)"
    )
    health_host: str = define_setting(
        "127.0.0.1", "Set the address of the worker's health checks and metrics (default: 127.0.0.1)"
    )
    health_port: int | None = define_setting(
        None, "Set the port of the worker's health checks and metrics; 0 picks a free one (default: none)"
    )
    api_host: str = define_setting(
        "127.0.0.1", "Set the address that the API listens on (default: 127.0.0.1)"
    )
    api_port: int = define_setting(
        8700, "Set the port that the API listens on; 0 picks a free one (default: 8700)"
    )
    service_key: Secret | None = define_setting(
        None, "Set the key that services send as a bearer token (default: none)"
    )
    jwt_secret: Secret | None = define_setting(
        None, "Set the secret that user tokens are signed with, HS256 (default: none)"
    )
    jwt_jwks: str | None = define_setting(
        None, "Set the URL or file of the key set that user tokens are signed with (default: none)"
    )
    jwt_issuer: str | None = define_setting(
        None, "Set the issuer that user tokens must name (default: any issuer)"
    )
    jwt_audience: str = define_setting(
        "authenticated", "Set the audience that user tokens must name (default: authenticated)"
    )
    jwt_cookie: str | None = define_setting(
        None, "Set the cookie that may carry the user token, besides the bearer header (default: none)"
    )
    cors_origins: str = define_setting(
        "", "List the origins, comma-separated, whose pages may call the API (default: none)"
    )
    api_body_limit: int = define_setting(
        1024 * 1024, "Set the maximum size of a request body in bytes (default: 1048576)"
    )
    api_timeout: timedelta = define_setting(
        timedelta(seconds=30), "Set the maximum duration of a request, except event streams (default: 30s)"
    )
    api_rate: int = define_setting(
        100, "Set the sustained number of requests per second of one user or key (default: 100)"
    )
    api_burst: int = define_setting(
        400, "Set the number of requests that one user or key may make at once (default: 400)"
    )
    user_jobs: int = define_setting(
        1000, "Set the maximum number of unfinished jobs of one user (default: 1000)"
    )
    user_streams: int = define_setting(
        16,
        "Set the maximum number of event streams of one user; services get ten times as many (default: 16)",
    )
    api_streams: int = define_setting(
        5000, "Set the maximum number of open event streams of one process (default: 5000)"
    )
    rpc_schemas: str = define_setting(
        "pgmq_public,holdfast",
        "List the schemas, comma-separated, that /rest/v1/rpc may call (default: pgmq_public,holdfast)",
    )
    egress_allow: str = define_setting(
        "", "List the private networks or hosts, comma-separated, that webhooks may call (default: none)"
    )
    systems_schema: str = define_setting(
        "public", "Set the schema that holds the tables of the ready-made systems (default: public)"
    )
    template_folder: Path | None = define_setting(
        None, "Set the folder with your own templates for document export (default: none)"
    )
    font_folders: str = define_setting(
        "", "List the folders, comma-separated, with additional fonts for documents (default: none)"
    )
    text_url: str | None = define_setting(
        None, "Set the URL of an OpenAI-compatible server that writes texts (default: the local writer)"
    )
    text_key: Secret | None = define_setting(None, "Set the API key for `text_url` (default: none)")
    text_model: str = define_setting("gpt-5-mini", "Set the model of `text_url` (default: gpt-5-mini)")
    speech_url: str | None = define_setting(
        None, "Set the URL of an OpenAI-compatible server that speaks (default: the local voice)"
    )
    speech_key: Secret | None = define_setting(None, "Set the API key for `speech_url` (default: none)")
    speech_model: str = define_setting(
        "gpt-4o-mini-tts", "Set the model of `speech_url` (default: gpt-4o-mini-tts)"
    )
    speech_voice: str = define_setting("alloy", "Set the voice of `speech_url` (default: alloy)")

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
                f"There is no setting {name!r}{_format_setting_suggestion(name, known)}",
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
    "CaptureLevel": get_args(CaptureLevel),
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
        shown = REDACTED_TEXT if kind == "Secret" else repr(raw)
        raise SettingsError(
            f"The setting {name} has the wrong value {shown}: {error}.", field=name
        ) from error


def redact_url(url: str) -> str:
    """Return a URL without its password, to show it."""
    # A URL parser would end the host at an unescaped / or ? in the password, so this goes up to the last @.
    url = re.sub(r"(://[^:/?#@]*):.*@", rf"\1:{REDACTED_TEXT}@", url, flags=re.DOTALL)
    return re.sub(r"([?&]password=)[^&#]*", rf"\1{REDACTED_TEXT}", url)

"""One frozen object with every setting, and the only reader of the environment.

The same name is used everywhere: `database_url` is the field here, `HOLDFAST_DATABASE_URL` in the
environment, `database_url` under `[tool.holdfast]` in pyproject.toml and `--database-url` on the command
line. What is nearer wins: command line, environment, pyproject, default. `DATABASE_URL` without prefix is
honoured because every host sets it.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, cast, get_args

from holdfast.errors import SettingsError

Switch = Literal["auto", "on", "off"]
LogFormat = Literal["human", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
CaptureLevel = Literal["off", "debug", "info", "warning", "error"]
OnOff = Literal["off", "on"]

PREFIX = "HOLDFAST_"
HIDDEN = "•••"


class Secret(str):
    """A string that does not print itself. `reveal()` where it is really needed."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Secret({HIDDEN!r})"

    def __str__(self) -> str:
        return HIDDEN

    def __format__(self, spec: str) -> str:
        return HIDDEN

    def reveal(self) -> str:
        return "".join(self)


def setting(default: Any, help: str) -> Any:  # noqa: A002  (reads as the CLI's word)
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, kw_only=True)
class Settings:
    database_url: Secret | None = setting(
        None, "where PostgreSQL is; without it the embedded one in `home` is started"
    )
    home: Path = setting(Path(".holdfast"), "folder for the embedded database and local files")
    pg_bin: Path | None = setting(
        None, "folder with postgres and initdb for the embedded database, instead of the wheel's"
    )
    pool_size: int = setting(8, "most connections one process opens, besides the one that listens")
    statement_cache: Switch = setting(
        "auto", "prepared statements: `off` behind a transaction pooler; `auto` asks the server"
    )
    listen: Switch = setting("auto", "wake-up by LISTEN/NOTIFY; `off` polls, as behind a transaction pooler")
    connect_timeout: timedelta = setting(timedelta(seconds=10), "how long to wait for a connection")
    call_timeout: timedelta = setting(timedelta(seconds=30), "how long one database call may take")
    lock_timeout: timedelta = setting(
        timedelta(milliseconds=800), "how long one migration step waits for a lock, and others behind it"
    )
    storage_url: Secret | None = setting(
        None, "where files are kept: a folder, or s3://, gs://, az:// with a bucket; else `files` in `home`"
    )
    signing_key: Secret | None = setting(
        None, "key that links to files are signed with; without it one is made and kept in `home`"
    )
    log_format: LogFormat = setting("human", "`human` for terminals, `json` for collectors")
    log_level: LogLevel = setting("info", "least level that is logged")
    capture_logs: CaptureLevel = setting(
        "off", "keep what tasks log with the `logging` module, from this level, with their attempt"
    )
    tracing: OnOff = setting("off", "OpenTelemetry spans from submit to run; needs holdfast[telemetry]")
    sentry_dsn: Secret | None = setting(None, "report exceptions of tasks there; needs holdfast[telemetry]")
    health_host: str = setting("127.0.0.1", "address that answers probes and gives metrics of a worker")
    health_port: int | None = setting(None, "port for that; 0 takes a free one; unset: none")
    api_host: str = setting("127.0.0.1", "address the API listens on")
    api_port: int = setting(8700, "port the API listens on; 0 takes a free one")
    service_key: Secret | None = setting(None, "key that services send as a bearer token")
    jwt_secret: Secret | None = setting(None, "secret that user tokens are signed with (HS256)")
    jwt_jwks: str | None = setting(None, "address or file of the key set that user tokens are signed with")
    jwt_issuer: str | None = setting(None, "issuer that user tokens must name")
    jwt_audience: str = setting("authenticated", "audience that user tokens must name")
    jwt_cookie: str | None = setting(None, "cookie that may carry the user token, besides the bearer header")
    cors_origins: str = setting("", "origins, with commas, whose pages may call the API")
    api_body_limit: int = setting(1024 * 1024, "most bytes of a request body")
    api_timeout: timedelta = setting(timedelta(seconds=30), "how long a request may take, streams excepted")
    api_rate: int = setting(100, "requests a second that one user or key may make for long")
    api_burst: int = setting(400, "requests that one user or key may make at once")
    user_jobs: int = setting(1000, "most unfinished jobs of one user")
    user_streams: int = setting(
        16, "most open event streams of one user or key; services have ten times as many"
    )
    api_streams: int = setting(5000, "most open event streams of one process")
    rpc_schemas: str = setting(
        "pgmq_public,holdfast", "schemas, with commas, whose functions /rest/v1/rpc calls"
    )
    egress_allow: str = setting("", "private networks or hosts, with commas, that webhooks may be sent to")
    systems_schema: str = setting("public", "schema that holds the tables of the ready-made systems")
    template_folder: Path | None = setting(None, "folder with templates of your own for document export")
    font_folders: str = setting("", "folders, with commas, where documents find more fonts")
    text_url: str | None = setting(None, "OpenAI-compatible server that writes texts; else the local writer")
    text_key: Secret | None = setting(None, "key for `text_url`")
    text_model: str = setting("gpt-5-mini", "model that `text_url` is asked for")
    speech_url: str | None = setting(None, "OpenAI-compatible server that speaks; else the local voice")
    speech_key: Secret | None = setting(None, "key for `speech_url`")
    speech_model: str = setting("gpt-4o-mini-tts", "model that `speech_url` is asked for")
    speech_voice: str = setting("alloy", "voice that `speech_url` is asked for")

    def __post_init__(self) -> None:
        at_least = {
            "pool_size": 1,
            "api_port": 0,
            "api_body_limit": 1024,
            "api_rate": 1,
            "api_burst": 1,
            "user_jobs": 1,
            "user_streams": 1,
            "api_streams": 1,
        }
        for name, least in at_least.items():
            value = getattr(self, name)
            if value < least:
                raise SettingsError(f"{name} must be at least {least}, got {value}.", field=name)
        if self.health_port is not None and not 0 <= self.health_port <= 65535:
            raise SettingsError(
                f"health_port must be between 0 and 65535, got {self.health_port}.", field="health_port"
            )
        if self.api_port > 65535:
            raise SettingsError(f"api_port must be at most 65535, got {self.api_port}.", field="api_port")


Source = Mapping[str, object]


def load(
    overrides: Source | None = None, *, environ: Mapping[str, str] | None = None, folder: Path | None = None
) -> Settings:
    """Settings from the command line (`overrides`), the environment and the nearest pyproject.toml."""
    environ = os.environ if environ is None else environ
    merged: dict[str, object] = {}
    for source in (_from_pyproject(folder or Path.cwd()), _from_environment(environ), dict(overrides or {})):
        merged.update({name: value for name, value in source.items() if value is not None})
    known = {f.name: f for f in fields(Settings)}
    values: dict[str, Any] = {}
    for name, raw in merged.items():
        if name not in known:
            raise SettingsError(
                f"There is no setting {name!r}.", fix=f"Known settings: {', '.join(known)}.", field=name
            )
        values[name] = _convert(name, str(known[name].type), raw)
    return Settings(**values)


def _from_environment(environ: Mapping[str, str]) -> dict[str, object]:
    found: dict[str, object] = {}
    if environ.get("DATABASE_URL"):
        found["database_url"] = environ["DATABASE_URL"]
    for f in fields(Settings):
        value = environ.get(PREFIX + f.name.upper())
        if value:
            found[f.name] = value
    return found


def _from_pyproject(folder: Path) -> dict[str, object]:
    for place in (folder, *folder.parents):
        path = place / "pyproject.toml"
        if not path.is_file():
            continue
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
            raise SettingsError(f"{path} cannot be read: {problem}.", fix="Mend the file.") from problem
        return cast("dict[str, object]", table.get("tool", {}).get("holdfast", {}))
    return {}


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|s|m|h|d)")


def parse_duration(text: str) -> timedelta:
    """`90s`, `1.5h`, `250ms`, `7d`."""
    match = _DURATION.fullmatch(text.strip())
    if not match:
        raise ValueError("write a number and a unit, as in 250ms, 90s, 5m, 1.5h or 7d")
    return timedelta(seconds=float(match["number"]) * _UNITS[match["unit"]])


CHOICES: dict[str, tuple[str, ...]] = {
    "Switch": get_args(Switch),
    "LogFormat": get_args(LogFormat),
    "LogLevel": get_args(LogLevel),
    "CaptureLevel": get_args(CaptureLevel),
    "OnOff": get_args(OnOff),
}


def _convert(name: str, kind: str, raw: object) -> object:
    kind = kind.removesuffix(" | None")
    try:
        if kind in CHOICES:
            if str(raw) not in CHOICES[kind]:
                raise ValueError(f"choose one of {', '.join(CHOICES[kind])}")
            return str(raw)
        if kind == "timedelta":
            return raw if isinstance(raw, timedelta) else parse_duration(str(raw))
        if kind == "int":
            return int(str(raw))
        plain = raw.reveal() if isinstance(raw, Secret) else str(raw)
        return {"Path": Path, "Secret": Secret, "str": str}[kind](plain)
    except ValueError as problem:
        shown = HIDDEN if kind == "Secret" else repr(raw)
        raise SettingsError(f"Setting {name} is {shown}: {problem}.", field=name) from problem


def redact_url(url: str) -> str:
    """The address without its password, for people to read."""
    # Up to the last @, because a password with an unescaped / or ? would end the host for a parser.
    url = re.sub(r"(://[^:/?#@]*):.*@", rf"\1:{HIDDEN}@", url, flags=re.DOTALL)
    return re.sub(r"([?&]password=)[^&#]*", rf"\1{HIDDEN}", url)

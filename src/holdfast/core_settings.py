"""Settings of the engine, the workers, the API and outgoing requests; `Settings` adds those of systems."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from holdfast.errors import SettingsError
from holdfast.setting_values import (
    AutoSwitch,
    LogCaptureLevel,
    LogFormat,
    LogLevel,
    OnOffSwitch,
    Secret,
    define_setting,
)


@dataclass(frozen=True, kw_only=True)
class CoreSettings:
    """Settings that do not belong to one of the bundled systems."""

    database_url: Secret | None = define_setting(
        None, "Set the URL of the PostgreSQL database (default: the embedded PostgreSQL in `home`)"
    )
    read_url: Secret | None = define_setting(
        None, "Set the URL of a read replica for lists, search and metrics (default: none, the primary)"
    )
    shards: Secret | None = define_setting(
        None,
        "Set the databases of all shards, as 1=postgresql://…,2=postgresql://… (default: one database)",
    )
    shard: int | None = define_setting(
        None, "Use only this shard of the setting `shards`, as the one database (default: all shards)"
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
    otlp_endpoint: str | None = define_setting(
        None,
        "Send traces, metrics and logs of workers and the API over OTLP/HTTP to this URL; turns `tracing` "
        "on and needs holdfast[telemetry] (default: none)",
    )
    sentry_dsn: Secret | None = define_setting(
        None, "Report exceptions of tasks to this Sentry DSN; needs holdfast[telemetry] (default: none)"
    )
    sentry_check_ins: OnOffSwitch = define_setting(
        "on", "Report the runs of schedules to Sentry as check-ins, if `sentry_dsn` is set (default: on)"
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
    public_url: str | None = define_setting(
        None,
        "Set the URL under which clients reach the API, or its prefix (/tasks), for links (default: none)",
    )
    service_key: Secret | None = define_setting(
        None, "Set a key with all rights, which services send as a bearer token (default: none)"
    )
    cron_secret: Secret | None = define_setting(
        None,
        "Set the secret that cron jobs send as a bearer token to process waiting bookmarks (default: none)",
    )
    jwt_secret: Secret | None = define_setting(
        None, "Set the HS256 secret that verifies the JWTs of users (default: none)"
    )
    jwt_jwks: str | None = define_setting(
        None, "Set the URL or file of the JWKS that verifies the JWTs of users (default: none)"
    )
    jwt_issuer: str | None = define_setting(
        None,
        "Set the issuer (`iss`) that the JWTs of users must have; needed with jwt_secret or jwt_jwks "
        "(default: none)",
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
    api_header_timeout: timedelta = define_setting(
        timedelta(seconds=10),
        "Set how long `holdfast api` waits for the head of a request (default: 10s)",
    )
    api_idle_timeout: timedelta = define_setting(
        timedelta(seconds=60),
        "Set how long `holdfast api` waits for a client that neither sends nor reads (default: 60s)",
    )
    trusted_proxies: str = define_setting(
        "",
        "Set the reverse proxies, comma-separated, whose X-Forwarded-* headers are trusted (default: none)",
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
    smtp_url: Secret | None = define_setting(
        None,
        "Set the SMTP server that sends alerts by e-mail, as smtp://user:password@host:587 (default: none)",
    )
    mail_from: str | None = define_setting(
        None, "Set the address that e-mails come from (default: holdfast@ and the host of `smtp_url`)"
    )
    egress_allow: str = define_setting(
        "",
        "Set the private networks, hosts or host:port, comma-separated, that webhooks and `holdfast.egress` "
        "may reach (default: none)",
    )
    egress_ports: str = define_setting(
        "80,443",
        "Set the ports, comma-separated, of public hosts that `holdfast.egress` may reach (default: 80,443)",
    )
    egress_max_bytes: int = define_setting(
        100 * 1024 * 1024,
        "Set the maximum size of a response that `holdfast.egress` reads, in bytes (default: 104857600)",
    )
    egress_timeout: timedelta = define_setting(
        timedelta(seconds=60),
        "Set the maximum duration of a request of `holdfast.egress`, with redirects and body (default: 60s)",
    )

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
            "egress_max_bytes": 1024,
        }
        for name, minimum in minimums.items():
            value = getattr(self, name)
            if value < minimum:
                raise SettingsError(f"{name} must be at least {minimum}, got {value}.", field=name)
        if self.health_port is not None and not 0 <= self.health_port <= 65535:
            raise SettingsError(
                f"health_port must be between 0 and 65535, got {self.health_port}.", field="health_port"
            )
        if self.public_url is not None:
            object.__setattr__(self, "public_url", _check_public_url(self.public_url))
        if self.api_port > 65535:
            raise SettingsError(f"api_port must be at most 65535, got {self.api_port}.", field="api_port")


def _check_public_url(url: str) -> str:
    """Return the public URL without a slash at its end. Raise SettingsError if it is not a plain URL."""
    parts = urlsplit(url)
    is_plain = not (parts.query or parts.fragment or parts.username or parts.password)
    is_url = parts.scheme in {"http", "https"} and bool(parts.hostname)
    is_path = url.startswith("/") and not url.startswith("//")
    if (is_url or is_path) and is_plain and not set(url) & set(" \t\r\n\\"):
        return url.rstrip("/")
    raise SettingsError(
        f"public_url must be an http or https URL without query and password, or a path, got {url!r}.",
        fix="Write the URL of the API, such as https://app.example/tasks, or its prefix, such as /tasks.",
        field="public_url",
    )

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
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from holdfast.core_settings import CoreSettings
from holdfast.errors import SettingsError
from holdfast.setting_values import (
    SETTING_CHOICES,
    AutoSwitch,
    LogCaptureLevel,
    LogFormat,
    LogLevel,
    OnOffSwitch,
    Secret,
    convert_setting_value,
    define_setting,
    parse_duration,
    parse_shards,
    redact_url,
)

__all__ = [
    "ENVIRONMENT_PREFIX",
    "SETTING_CHOICES",
    "AutoSwitch",
    "LogCaptureLevel",
    "LogFormat",
    "LogLevel",
    "OnOffSwitch",
    "Secret",
    "SettingSource",
    "Settings",
    "define_setting",
    "load_settings",
    "parse_duration",
    "redact_url",
]

ENVIRONMENT_PREFIX = "HOLDFAST_"
# Variables without the prefix: hosting platforms set the first, users of the media system know the others.
PLAIN_ENVIRONMENT_NAMES = ("database_url", "async_downloads_enabled", "download_workers")


@dataclass(frozen=True, kw_only=True)
class Settings(CoreSettings):
    """All settings. `load_settings()` reads them from the environment and pyproject.toml.

    >>> from holdfast import Secret, Settings
    >>> settings = Settings(database_url=Secret("postgresql://localhost/app"), pool_size=4)
    >>> settings.pool_size
    4
    """

    systems_schema: str = define_setting(
        "public",
        "Set the database schema for the tables of the bundled applications (systems) (default: public)",
    )
    media_hosts: str = define_setting(
        "",
        "Set the hosts, comma-separated, whose media may be downloaded, with their subdomains "
        "(default: every public host)",
    )
    media_max_bytes: int = define_setting(
        2 * 1024**3, "Set the maximum size of a downloaded media file in bytes (default: 2147483648)"
    )
    media_max_duration: timedelta = define_setting(
        timedelta(hours=4), "Set the maximum playing time of downloaded media (default: 4h)"
    )
    media_timeout: timedelta = define_setting(
        timedelta(hours=1), "Set the maximum duration of one attempt to download media (default: 1h)"
    )
    media_idle_timeout: timedelta = define_setting(
        timedelta(seconds=30), "Set how long a media download waits for the next byte (default: 30s)"
    )
    media_retry_delay: timedelta = define_setting(
        timedelta(seconds=10), "Set the delay before a broken media download is tried again (default: 10s)"
    )
    media_user_rate: int = define_setting(
        100, "Set how many shares one user may add in an hour (default: 100)"
    )
    media_user_bytes: int = define_setting(
        10 * 1024**3, "Set how many bytes of media one user may store (default: 10737418240)"
    )
    media_plan_claim: str = define_setting(
        "app_metadata.plan", "Set where JWTs name the plan of a user (default: app_metadata.plan)"
    )
    media_premium_plans: str = define_setting(
        "premium,pro,enterprise",
        "Set the plans, comma-separated, whose media downloads start first (default: premium,pro,enterprise)",
    )
    async_downloads_enabled: OnOffSwitch = define_setting(
        "on",
        "Answer new shares before their download; `off` answers when it has ended. ASYNC_DOWNLOADS_ENABLED "
        "works too (default: on)",
    )
    download_workers: int | None = define_setting(
        None,
        "Set how many processes `holdfast worker holdfast.systems.media` starts. DOWNLOAD_WORKERS works too "
        "(default: the option --processes)",
    )
    template_folder: Path | None = define_setting(
        None, "Set the folder of your own templates for exported documents (default: none)"
    )
    export_retention: timedelta = define_setting(
        timedelta(days=7), "Set how long exported documents are kept (default: 7d)"
    )
    report_retention: timedelta = define_setting(
        timedelta(days=90), "Set how long reports and their files are kept (default: 90d)"
    )
    report_budget_cents: int = define_setting(
        0,
        "Set the maximum cost of a user's reports in 30 days, in cents of `provider_prices` "
        "(default: 0, no maximum)",
    )
    font_folders: str = define_setting(
        "", "Set the folders, comma-separated, of additional fonts for documents (default: none)"
    )
    chromium: Path | None = define_setting(
        None, "Set the path of the Chromium that captures and prints pages (default: search for it)"
    )
    chromium_sandbox: OnOffSwitch = define_setting(
        "on", "Use the sandbox of Chromium; `off` only where the machine has none (default: on)"
    )
    ffmpeg: Path | None = define_setting(
        None, "Set the path of the ffmpeg that reads media (default: that of the package imageio-ffmpeg)"
    )
    chromium_user: str = define_setting(
        "nobody", "Set the user that runs Chromium if the worker is root (default: nobody)"
    )
    text_url: str | None = define_setting(
        None,
        "Set the URL of an OpenAI-compatible text generation server (default: local text generation)",
    )
    text_key: Secret | None = define_setting(None, "Set the API key for `text_url` (default: none)")
    text_model: str = define_setting("gpt-5-mini", "Set the model that `text_url` uses (default: gpt-5-mini)")
    text_timeout: timedelta = define_setting(
        timedelta(minutes=2), "Set the maximum duration of a request to `text_url` (default: 2m)"
    )
    text_max_tokens: int | None = define_setting(
        None, "Set the maximum number of tokens that `text_url` may generate per request (default: no limit)"
    )
    vision_url: str | None = define_setting(
        None, "Set the URL of an OpenAI-compatible server that describes images (default: local measurements)"
    )
    vision_key: Secret | None = define_setting(None, "Set the API key for `vision_url` (default: none)")
    vision_model: str = define_setting(
        "gpt-5-mini", "Set the model that `vision_url` uses (default: gpt-5-mini)"
    )
    vision_timeout: timedelta = define_setting(
        timedelta(minutes=1), "Set the maximum duration of a request to `vision_url` (default: 1m)"
    )
    vision_max_tokens: int | None = define_setting(
        200, "Set the maximum number of tokens that `vision_url` may generate per request (default: 200)"
    )
    speech_url: str | None = define_setting(
        None,
        "Set the URL of an OpenAI-compatible text-to-speech server (default: local speech synthesis)",
    )
    speech_key: Secret | None = define_setting(None, "Set the API key for `speech_url` (default: none)")
    speech_model: str = define_setting(
        "gpt-4o-mini-tts", "Set the model that `speech_url` uses (default: gpt-4o-mini-tts)"
    )
    speech_voice: str = define_setting("alloy", "Set the voice that `speech_url` uses (default: alloy)")
    speech_timeout: timedelta = define_setting(
        timedelta(minutes=3), "Set the maximum duration of a request to `speech_url` (default: 3m)"
    )
    embeddings_url: str | None = define_setting(
        None, "Set the URL of an OpenAI-compatible embeddings server (default: local word vectors)"
    )
    embeddings_key: Secret | None = define_setting(
        None, "Set the API key for `embeddings_url` (default: none)"
    )
    embeddings_model: str = define_setting(
        "text-embedding-3-small",
        "Set the model that `embeddings_url` uses (default: text-embedding-3-small)",
    )
    embeddings_timeout: timedelta = define_setting(
        timedelta(minutes=1), "Set the maximum duration of a request to `embeddings_url` (default: 1m)"
    )
    transcription_url: str | None = define_setting(
        None, "Set the URL of an OpenAI-compatible transcription server (default: local transcription)"
    )
    transcription_key: Secret | None = define_setting(
        None, "Set the API key for `transcription_url` (default: none)"
    )
    transcription_model: str = define_setting(
        "whisper-1", "Set the model that `transcription_url` uses (default: whisper-1)"
    )
    transcription_model_path: Path | None = define_setting(
        None,
        "Set the folder of a Whisper model (CTranslate2) for local transcription (default: pocketsphinx)",
    )
    transcription_timeout: timedelta = define_setting(
        timedelta(minutes=5), "Set the maximum duration of a request to `transcription_url` (default: 5m)"
    )
    scraping_url: str | None = define_setting(
        None, "Set the URL of a scraping API (ScrapeCreators) for clips (default: yt-dlp on the worker)"
    )
    scraping_key: Secret | None = define_setting(None, "Set the API key for `scraping_url` (default: none)")
    scraping_model: str = define_setting(
        "scrapecreators", "Set the name of `scraping_url` in `provider_prices` (default: scrapecreators)"
    )
    scraping_timeout: timedelta = define_setting(
        timedelta(minutes=1), "Set the maximum duration of a request to `scraping_url` (default: 1m)"
    )
    clips_sources: str = define_setting(
        "scraping,captions,speech",
        "Set where transcripts of clips come from, in this order: scraping, captions, speech "
        "(default: scraping,captions,speech)",
    )
    clips_ingest_secret: Secret | None = define_setting(
        None, "Set the secret that database webhooks send to /api/v1/clips/ingest (default: none)"
    )
    provider_prices: str = define_setting(
        "", "Set the prices of models as JSON, for the cost of provider calls (default: no prices)"
    )


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
        values[name] = convert_setting_value(name, str(known[name].type), raw)
    return _select_shard(Settings(**values))


def _select_shard(settings: Settings) -> Settings:
    """Make the shard of the setting `shard` the one database."""
    if settings.shard is None:
        return settings
    shards = parse_shards(settings.shards.reveal()) if settings.shards else {}
    if settings.shard not in shards:
        known = ", ".join(map(str, shards)) or "none: HOLDFAST_SHARDS is not set"
        raise SettingsError(
            f"Shard {settings.shard} is not in the setting shards.", fix=f"Shards: {known}.", field="shard"
        )
    return replace(settings, database_url=shards[settings.shard], shards=None)


def _format_setting_suggestion(name: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else "."


def _read_environment_settings(environ: Mapping[str, str]) -> dict[str, object]:
    values: dict[str, object] = {}
    for name in PLAIN_ENVIRONMENT_NAMES:
        if environ.get(name.upper()):
            values[name] = environ[name.upper()]
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

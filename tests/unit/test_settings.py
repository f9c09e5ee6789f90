from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.errors import SettingsError
from holdfast.settings import Secret, Settings, load_settings, parse_duration, redact_url


def test_defaults_need_no_environment(tmp_path: Path) -> None:
    assert load_settings(environ={}, folder=tmp_path) == Settings()


def test_the_order_of_sources(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.holdfast]\npool_size = 3\napi_port = 1000\nlog_level = "error"\n'
    )
    loaded = load_settings(
        {"api_port": "3000"},
        environ={"HOLDFAST_API_PORT": "2000", "HOLDFAST_LOG_LEVEL": "debug"},
        folder=tmp_path,
    )
    assert (loaded.pool_size, loaded.log_level, loaded.api_port) == (3, "debug", 3000)


def test_pyproject_is_found_from_a_folder_below(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.holdfast]\npool_size = 5\n")
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert load_settings(environ={}, folder=below).pool_size == 5


def test_prefixed_url_wins_over_the_plain_one(tmp_path: Path) -> None:
    environ = {"DATABASE_URL": "postgresql://a/x", "HOLDFAST_DATABASE_URL": "postgresql://b/x"}
    assert load_settings(environ=environ, folder=tmp_path).database_url == "postgresql://b/x"
    del environ["HOLDFAST_DATABASE_URL"]
    assert load_settings(environ=environ, folder=tmp_path).database_url == "postgresql://a/x"


def test_empty_variables_count_as_unset(tmp_path: Path) -> None:
    assert (
        load_settings(environ={"DATABASE_URL": "", "HOLDFAST_POOL_SIZE": ""}, folder=tmp_path) == Settings()
    )


@pytest.mark.parametrize(
    ("environ", "field", "says"),
    [
        ({"HOLDFAST_POOL_SIZE": "many"}, "pool_size", "many"),
        ({"HOLDFAST_POOL_SIZE": "0"}, "pool_size", "at least 1"),
        ({"HOLDFAST_API_PORT": "70000"}, "api_port", "65535"),
        ({"HOLDFAST_LISTEN": "maybe"}, "listen", "auto, on, off"),
        ({"HOLDFAST_CALL_TIMEOUT": "30"}, "call_timeout", "a number and a unit"),
        ({"HOLDFAST_LOG_FORMAT": "xml"}, "log_format", "human, json"),
    ],
)
def test_a_bad_value_names_the_setting(
    tmp_path: Path, environ: dict[str, str], field: str, says: str
) -> None:
    with pytest.raises(SettingsError, match=says) as caught:
        load_settings(environ=environ, folder=tmp_path)
    assert caught.value.field == field
    assert caught.value.exit_code == 2


def test_an_unknown_setting_in_pyproject_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.holdfast]\npoolsize = 5\n")
    with pytest.raises(SettingsError, match=r"poolsize.*pool_size"):
        load_settings(environ={}, folder=tmp_path)


def test_a_broken_pyproject_is_named(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.holdfast\n")
    with pytest.raises(SettingsError, match=r"pyproject\.toml"):
        load_settings(environ={}, folder=tmp_path)


def test_secrets_are_not_printed() -> None:
    secret = Secret("postgresql://me:hunter2@host/db")
    settings = Settings(database_url=secret, service_key=Secret("hunter2"))
    shown = [
        repr(secret),
        str(secret),
        f"{secret}",
        f"{secret:>40}",
        repr(settings),
        str(settings),
        f"{secret!r}",
    ]
    assert not [text for text in shown if "hunter2" in text]
    assert secret.reveal() == "postgresql://me:hunter2@host/db"


def test_errors_do_not_show_secrets(tmp_path: Path) -> None:
    loaded = load_settings({"service_key": Secret("hunter2")}, environ={}, folder=tmp_path)
    assert loaded.service_key is not None
    assert loaded.service_key.reveal() == "hunter2"


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("250ms", timedelta(milliseconds=250)),
        ("90s", timedelta(seconds=90)),
        (" 1.5 h ", timedelta(minutes=90)),
        ("7d", timedelta(days=7)),
    ],
)
def test_durations(text: str, duration: timedelta) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize("text", ["", "5", "s", "-5s", "5 weeks", "1e3s"])
def test_durations_without_a_unit_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="unit"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:pass@host:5432/db", "postgresql://me:•••@host:5432/db"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        (
            "postgresql://me:p%40ss@[::1]:5/db?sslmode=require",
            "postgresql://me:•••@[::1]:5/db?sslmode=require",
        ),
        ("postgresql:///db", "postgresql:///db"),
    ],
)
def test_urls_are_shown_without_their_password(url: str, shown: str) -> None:
    assert redact_url(url) == shown

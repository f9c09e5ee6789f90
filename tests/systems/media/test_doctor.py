"""The lines of `holdfast doctor` for media."""

from __future__ import annotations

import asyncio
import importlib.metadata
from datetime import timedelta

import pytest
from media_harness import MediaHarness, media_url
from web_servers import WebServer

from holdfast.cli.root import run_command_line
from holdfast.testing import Clock


async def read_doctor_lines(system: MediaHarness, capsys: pytest.CaptureFixture[str]) -> list[str]:
    command = ["--database-url", system.db.url.reveal(), "--home", str(system.db.settings.home), "doctor"]
    await asyncio.to_thread(run_command_line, command)
    return [line for line in capsys.readouterr().out.splitlines() if line[6:].startswith("media ")]


async def test_doctor_reports_programs_transcription_confinement_and_downloads(
    media_system: MediaHarness, website: WebServer, capsys: pytest.CaptureFixture[str], clock: Clock
) -> None:
    ffmpeg, ytdlp, transcription, confinement, downloads, storage = await read_doctor_lines(
        media_system, capsys
    )
    assert ffmpeg.startswith("ok")
    assert "starts." in ffmpeg
    assert importlib.metadata.version("yt-dlp") in ytdlp
    assert "pocketsphinx, which gets many words wrong" in transcription
    assert "Media programs are confined" in confinement or confinement.startswith("warn")
    assert "No download is waiting" in downloads
    assert storage.startswith("ok")

    user = media_system.create_user()
    await user.share(media_url(website))
    await clock.advance(timedelta(hours=3))
    waiting = (await read_doctor_lines(media_system, capsys))[4]
    assert waiting.startswith("warn")
    assert "1 downloads are not complete; 0 of them are running. One has been waiting for " in waiting
    assert "hours" in waiting


async def test_doctor_reports_what_is_missing_and_what_is_old(
    media_system: MediaHarness, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_FFMPEG", "/nonexistent/ffmpeg")
    monkeypatch.setenv("HOLDFAST_TRANSCRIPTION_MODEL_PATH", "/nonexistent/model")
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "2020.1.1")
    ffmpeg, ytdlp, transcription, *_ = await read_doctor_lines(media_system, capsys)
    assert "cannot process media: The ffmpeg '/nonexistent/ffmpeg' does not exist" in ffmpeg
    assert "2020.1.1 is " in ytdlp
    assert "has no file model.bin" in transcription
    assert {line[:4] for line in (ffmpeg, ytdlp, transcription)} == {"warn"}
    monkeypatch.setenv("HOLDFAST_FFMPEG", "/bin/false")
    ffmpeg, *_ = await read_doctor_lines(media_system, capsys)
    assert "/bin/false does not start" in ffmpeg

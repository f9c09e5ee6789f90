"""Logs: every telemetry event and every log record of ours, one line each, for people or for collectors."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast import telemetry
from holdfast.settings import Settings

_LEVELS = {
    "database.away": logging.WARNING,
    "database.recovered": logging.WARNING,
    "schema.role_skipped": logging.WARNING,
    "task.lease_lost": logging.WARNING,
    "worker.blocked": logging.WARNING,
    "worker.heartbeat_replaced": logging.WARNING,
    "worker.process_restarted": logging.WARNING,
    "worker.child_started": logging.DEBUG,
    "worker.child_ended": logging.DEBUG,
    "task.started": logging.DEBUG,
    "task.raised": logging.DEBUG,
    "worker.claimed": logging.DEBUG,
    "api.request": logging.DEBUG,
}


def configure(settings: Settings) -> None:
    """Send what Holdfast has to say to standard error. Replaces what an earlier call set up."""
    log = logging.getLogger("holdfast")
    log.setLevel(settings.log_level.upper())
    log.propagate = False
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(JsonLines() if settings.log_format == "json" else HumanLines())
    log.handlers = [output]
    # Not for what would not be shown: at thousands of tasks a second, making an event is work.
    shown = {name for name in telemetry.EVENTS if log.isEnabledFor(_LEVELS.get(name, logging.INFO))}
    telemetry.subscribe(_log_event, only=shown | {"task.finished", "message.finished"})


def _log_event(name: str, fields: dict[str, Any]) -> None:
    level = _LEVELS.get(name, logging.INFO)
    if fields.get("outcome") in {"fail", "reject", "crash", "bury"}:
        level = logging.WARNING
    log = logging.getLogger("holdfast")
    if log.isEnabledFor(level):
        log.log(level, name, extra={"fields": fields})


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return getattr(record, "fields", {})


class JsonLines(logging.Formatter):
    """One JSON object a line, whatever is in the fields: a newline in an error stays inside its string."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **{name: _plain(value) for name, value in _fields(record).items()},
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class HumanLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
        fields = " ".join(
            f"{name}={_short(value)}" for name, value in _fields(record).items() if value is not None
        )
        text = f"{at} {record.levelname.lower():<7} {record.getMessage()} {fields}".rstrip()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


def _plain(value: object) -> object:
    """Numbers stay numbers; everything else by `str`, under which a secret is dots."""
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)


def _short(value: object) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    text = text if text.isprintable() else ascii(text)[1:-1]
    return f"{text[:200]}…" if len(text) > 200 else text

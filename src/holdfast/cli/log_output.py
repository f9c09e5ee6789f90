"""Write telemetry events and log records to standard error, one line each, as text or as JSON."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast import telemetry
from holdfast.redaction import SecretMasker
from holdfast.settings import Settings

_LOG_LEVELS_BY_EVENT = {
    "database.connection_failed": logging.WARNING,
    "database.still_unreachable": logging.WARNING,
    "database.stale_state_removed": logging.WARNING,
    "schema.role_skipped": logging.WARNING,
    "outcome.refused": logging.WARNING,
    "task.lease_lost": logging.WARNING,
    "worker.event_loop_blocked": logging.WARNING,
    "worker.heartbeat_replaced": logging.WARNING,
    "worker.process_restarted": logging.WARNING,
    "worker.service_failed": logging.WARNING,
    "worker.child_started": logging.DEBUG,
    "worker.child_ended": logging.DEBUG,
    "message.started": logging.DEBUG,
    "schedule.attempt_started": logging.DEBUG,
    "task.started": logging.DEBUG,
    "task.raised": logging.DEBUG,
    "tasks.claimed": logging.DEBUG,
    "api.request_completed": logging.DEBUG,
}
_ERROR_FIELDS = frozenset({"error", "exception", "message", "reason"})
# It knows no secrets: it masks passwords in URLs and values that are assigned to secret names.
_MASKER = SecretMasker()
_EVENTS_WITH_OUTCOME = frozenset({"task.finished", "message.finished"})
# A worker runs thousands of tasks per second: what went as intended is shown only for debugging.
_LOG_LEVELS_BY_OUTCOME = {
    "succeed": logging.DEBUG,
    "snooze": logging.DEBUG,
    "limited": logging.DEBUG,
    "archive": logging.DEBUG,
    "delete": logging.DEBUG,
    "done": logging.DEBUG,
    "delay": logging.DEBUG,
    "fail": logging.WARNING,
    "reject": logging.WARNING,
    "crash": logging.WARNING,
    "dead_letter": logging.WARNING,
}


def configure_logging(settings: Settings) -> None:
    """Write telemetry events and log records to standard error, in the format that the settings choose.

    A second call replaces the first.
    """
    logger = logging.getLogger("holdfast")
    logger.setLevel(settings.log_level.upper())
    logger.propagate = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLogFormatter() if settings.log_format == "json" else TextLogFormatter())
    logger.handlers = [handler]
    # Subscribe only to events that are shown: at thousands of tasks per second, creating an event costs time.
    shown = {
        name
        for name in telemetry.EVENT_DESCRIPTIONS
        if logger.isEnabledFor(_LOG_LEVELS_BY_EVENT.get(name, logging.INFO))
    }
    telemetry.subscribe(_log_event, only=shown | _EVENTS_WITH_OUTCOME)


def _log_event(name: str, fields: dict[str, Any]) -> None:
    level = _LOG_LEVELS_BY_EVENT.get(name, logging.INFO)
    if name in _EVENTS_WITH_OUTCOME:
        level = _LOG_LEVELS_BY_OUTCOME.get(str(fields.get("outcome")), level)
    logger = logging.getLogger("holdfast")
    if logger.isEnabledFor(level):
        logger.log(level, name, extra={"fields": fields})


def _get_event_fields(record: logging.LogRecord) -> dict[str, Any]:
    return getattr(record, "fields", {})


class JsonLogFormatter(logging.Formatter):
    """Formats a log record as one JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **{name: _to_json_value(name, value) for name, value in _get_event_fields(record).items()},
        }
        if record.exc_info:
            fields["traceback"] = _MASKER.mask_text(self.formatException(record.exc_info))
        return msgspec.json.encode(fields).decode()


class TextLogFormatter(logging.Formatter):
    """Formats a log record as time, level, event and `name=value` fields."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
        fields = " ".join(
            f"{name}={_format_field_value(name, value)}"
            for name, value in _get_event_fields(record).items()
            if value is not None
        )
        text = f"{at} {record.levelname.lower():<7} {record.getMessage()} {fields}".rstrip()
        if record.exc_info:
            text += "\n" + _MASKER.mask_text(self.formatException(record.exc_info))
        return text


def _to_json_value(name: str, value: object) -> object:
    """Return numbers, booleans and None unchanged; convert other values with `str`, which masks secrets."""
    return value if value is None or isinstance(value, (bool, int, float)) else _mask_error(name, str(value))


def _mask_error(name: str, text: str) -> str:
    """Mask passwords in URLs and assigned secrets in the fields that hold the text of an error."""
    return _MASKER.mask_text(text) if name in _ERROR_FIELDS else text


def _format_field_value(name: str, value: object) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else _mask_error(name, str(value))
    text = text if text.isprintable() else ascii(text)[1:-1]
    return f"{text[:200]}…" if len(text) > 200 else text

"""Send notifications by SMTP. The server is the setting `smtp_url`: smtp://user:password@host:587, or smtps://."""

from __future__ import annotations

import smtplib
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from holdfast.errors import SettingsError
from holdfast.formatting import sanitize_text
from holdfast.settings import Settings

SMTP_TIMEOUT_S: Final = 20.0
DEFAULT_PORTS: Final = {"smtp": 587, "smtps": 465}
MAX_SUBJECT_CHARS: Final = 150
_LOOPBACK_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_URL_FIX = "Write it as smtp://user:password@host:587, or smtps://host:465 for TLS from the start."


@dataclass(frozen=True)
class SmtpServer:
    """The SMTP server of the settings, and the address that notifications come from."""

    host: str
    port: int
    user: str | None
    password: str | None
    implicit_tls: bool
    sender: str

    @classmethod
    def from_settings(cls, settings: Settings) -> SmtpServer:
        """Return the server of the setting `smtp_url`. Raise SettingsError if it is missing or not valid."""
        if settings.smtp_url is None:
            raise SettingsError(
                "No SMTP server is set, so e-mails cannot be sent.", field="smtp_url", fix=_URL_FIX
            )
        try:
            parts = urlsplit(settings.smtp_url.reveal())
            port = parts.port
        except ValueError:
            raise SettingsError("smtp_url is not a URL.", field="smtp_url", fix=_URL_FIX) from None
        if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
            raise SettingsError("smtp_url is not a URL of SMTP.", field="smtp_url", fix=_URL_FIX)
        return cls(
            parts.hostname,
            port or DEFAULT_PORTS[parts.scheme],
            _unquote_part(parts, "username"),
            _unquote_part(parts, "password"),
            parts.scheme == "smtps",
            settings.mail_from or f"holdfast@{parts.hostname}",
        )


def _unquote_part(parts: SplitResult, name: str) -> str | None:
    value: str | None = getattr(parts, name)
    return None if value is None else unquote(value)


def send_mail(server: SmtpServer, recipients: Sequence[str], subject: str, text: str) -> None:
    """Send one message to all recipients. Raise OSError or smtplib.SMTPException if the server refuses it."""
    message = EmailMessage()
    message["Subject"] = sanitize_text(subject, MAX_SUBJECT_CHARS)  # a line break would start a new header
    message["From"], message["To"] = server.sender, ", ".join(recipients)
    message["Date"], message["Message-ID"] = formatdate(), make_msgid(domain="holdfast.invalid")
    message["Auto-Submitted"] = "auto-generated"  # asks for no answers of absent people
    message.set_content(text)
    context = ssl.create_default_context()
    with _connect(server, context) as connection:
        connection.ehlo()
        if not server.implicit_tls and connection.has_extn("starttls"):
            connection.starttls(context=context)
            connection.ehlo()
        elif server.password and not server.implicit_tls and server.host not in _LOOPBACK_HOSTS:
            raise smtplib.SMTPException("The server offers no TLS, so the password is not sent.")
        if server.user and server.password is not None:
            connection.login(server.user, server.password)
        connection.send_message(message)


def _connect(server: SmtpServer, context: ssl.SSLContext) -> smtplib.SMTP:
    if server.implicit_tls:
        return smtplib.SMTP_SSL(server.host, server.port, timeout=SMTP_TIMEOUT_S, context=context)
    return smtplib.SMTP(server.host, server.port, timeout=SMTP_TIMEOUT_S)

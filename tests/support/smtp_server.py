"""A small SMTP server (RFC 5321) that keeps the messages it receives and can refuse them."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message


@dataclass
class SmtpServer:
    """What the server received. `refuse_recipients` answers RCPT with 550, `login` is required if set."""

    port: int = 0
    refuse_recipients: bool = False
    login: tuple[str, str] | None = None
    messages: list[Message] = field(default_factory=list[Message])
    recipients: list[str] = field(default_factory=list[str])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.test ESMTP\r\n")
        signed_in = self.login is None
        while line := (await reader.readline()).decode().rstrip("\r\n"):
            verb = line.partition(" ")[0].upper()
            if verb == "EHLO":
                writer.write(b"250-mail.test\r\n250 AUTH PLAIN\r\n")
            elif verb == "AUTH":
                _, user, password = base64.b64decode(line.split(" ")[2]).decode().split("\0")
                signed_in = (user, password) == self.login
                writer.write(b"235 welcome\r\n" if signed_in else b"535 wrong password\r\n")
            elif not signed_in and verb != "QUIT":
                writer.write(b"530 sign in first\r\n")
            elif verb == "RCPT" and self.refuse_recipients:
                writer.write(b"550 no such user\r\n")
            elif verb == "DATA":
                writer.write(b"354 go on\r\n")
                body = (await reader.readuntil(b"\r\n.\r\n"))[:-5]
                self.messages.append(message_from_bytes(body))
                writer.write(b"250 stored\r\n")
            else:
                if verb == "RCPT":
                    self.recipients.append(line.partition("<")[2].partition(">")[0])
                writer.write(b"221 bye\r\n" if verb == "QUIT" else b"250 ok\r\n")
            if verb == "QUIT":
                break
            await writer.drain()
        writer.close()


@asynccontextmanager
async def run_smtp_server() -> AsyncGenerator[SmtpServer]:
    """Run an SMTP server on a free port of this machine."""
    smtp = SmtpServer()
    server = await asyncio.start_server(smtp.serve, "127.0.0.1", 0)
    smtp.port = server.sockets[0].getsockname()[1]
    try:
        yield smtp
    finally:
        server.close()

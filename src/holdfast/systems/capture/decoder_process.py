"""The program of a decoder process: it answers requests on its standard input until the input closes.

    python -m holdfast.systems.capture.decoder_process images|text MAX_MEMORY_BYTES [UID GID]

A request and a response are one MessagePack value each, after its length in eight bytes. The libraries are
loaded first, and then the process gives up its rights, so that a hole in a library gains little.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

import msgspec

from holdfast.systems.capture import decoder_operations
from holdfast.systems.capture.chromium_launcher import lower_priority
from holdfast.systems.capture.decoder_operations import DecodeRefusedError
from holdfast.systems.capture.libraries import load_library

PR_SET_PDEATHSIG = 1
PR_SET_NO_NEW_PRIVS = 38


class DecodeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A file to decode, and how."""

    operation: str
    content: bytes
    options: dict[str, Any] = {}


class DecodeResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an operation, or the reason for users why there is none."""

    result: bytes = b""
    refused: str | None = None
    failed: str | None = None


OPERATIONS: dict[str, Callable[..., object]] = {
    "decode_image": decoder_operations.decode_image,
    "render_pdf_page": decoder_operations.render_pdf_page,
    "read_image_text": decoder_operations.read_image_text,
}


def load_libraries(kind: str) -> None:
    """Run each operation once. Afterwards the process may no longer be able to read the libraries' files."""
    pillow = load_library("PIL.Image")
    pillow.init()
    picture = pillow.new("RGB", (64, 64), "white")
    files: dict[str, bytes] = {}
    for file_format in ("PNG", "JPEG", "GIF", "WEBP", "PDF"):
        output = io.BytesIO()
        picture.save(output, file_format)
        files[file_format] = output.getvalue()
    if kind == "text":
        decoder_operations.read_image_text(files["PNG"])
        return
    decoder_operations.render_pdf_page(files.pop("PDF"), 64)
    for content in files.values():
        decoder_operations.decode_image(content, 64, "WEBP")
        decoder_operations.decode_image(content, 64, "PNG")


def drop_rights(max_memory_bytes: int, user: tuple[int, int] | None) -> None:
    """Limit memory, forbid files and new programs, and become an unprivileged user if the process is root."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (max_memory_bytes, max_memory_bytes))
    library = ctypes.CDLL(None, use_errno=True)
    if user is not None:
        os.setgroups([])
        os.setgid(user[1])
        os.setuid(user[0])
    library.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def answer_request(data: bytes) -> DecodeResponse:
    request = msgspec.msgpack.decode(data, type=DecodeRequest)
    try:
        result = OPERATIONS[request.operation](request.content, **request.options)
    except DecodeRefusedError as error:
        return DecodeResponse(refused=str(error))
    except MemoryError:
        return DecodeResponse(refused="The file needs too much memory.")
    except Exception as error:  # the libraries raise anything for damaged files
        return DecodeResponse(failed=f"{type(error).__name__}: {error}"[:500])
    return DecodeResponse(result=msgspec.msgpack.encode(result))


def serve_requests(source: BinaryIO, target: BinaryIO) -> None:
    while len(header := source.read(8)) == 8:
        response = msgspec.msgpack.encode(answer_request(source.read(int.from_bytes(header, "big"))))
        target.write(len(response).to_bytes(8, "big") + response)
        target.flush()


def main() -> None:
    kind, max_memory, *user = sys.argv[1:]
    # Libraries print to the standard output, which carries the responses.
    target = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    load_libraries(kind)
    lower_priority()
    drop_rights(int(max_memory), (int(user[0]), int(user[1])) if user else None)
    target.write(b"ready\0\0\0")
    target.flush()
    with contextlib.suppress(BrokenPipeError):
        serve_requests(sys.stdin.buffer, target)


if __name__ == "__main__":
    main()

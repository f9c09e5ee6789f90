"""Run a program on files of strangers: without rights, with limits, and never longer than the worker.

The program is a child of the launcher that also starts Chromium. The launcher measures memory and processes
and ends the program when the worker dies. `confinement.py` takes its rights away before it reads a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from holdfast.systems.capture.chromium_command import find_browser_user
from holdfast.systems.capture.chromium_launcher import EXIT_TOO_MANY_PROCESSES, EXIT_TOO_MUCH_MEMORY
from holdfast.systems.capture.media_decoder import build_decoder_environment
from holdfast.systems.piped_process import PipedProcess, open_pipe_reader

LAUNCHER = Path(__file__).parent.with_name("capture") / "chromium_launcher.py"
CONFINEMENT = Path(__file__).with_name("confinement.py")
UNPRIVILEGED_USER = "nobody"
SYSTEM_LIBRARIES = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives", "/etc/ssl",
                    "/etc/mime.types", "/etc/localtime", "/dev/urandom")  # fmt: skip
STOP_TIMEOUT_S = 5.0
QUOTA_INTERVAL_S = 0.2
MAX_LOG_BYTES = 128 * 1024
MAX_REQUEST_BYTES = 64 * 1024  # what a pipe holds


LimitName = Literal["time", "memory", "processes", "bytes", "output"]


@dataclass(frozen=True, kw_only=True)
class ProgramLimits:
    """Limits of one program. `max_folder_bytes` holds for all files in its working folder together."""

    timeout_s: float
    max_file_bytes: int
    max_folder_bytes: int
    max_memory_bytes: int = 1024 * 1024 * 1024
    max_address_space_bytes: int = 8 * 1024 * 1024 * 1024
    max_cpu_s: int = 6 * 3600
    max_processes: int = 1


@dataclass(frozen=True, kw_only=True)
class ProgramCall:
    """A program, its working folder, and what else it may read and reach.

    Arguments:
        command: the path of the program and its arguments, or the name of a module of Holdfast
        folder: the working folder, the only one that the program may write to
        request: what the program reads from its standard input, at most 64 KiB
        readable: files and folders that the program may read, besides the libraries of the system
        proxy_port: the port of the guarded proxy (default: the program has no connections)
    """

    command: Sequence[str]
    folder: Path
    limits: ProgramLimits
    request: bytes = b""
    readable: Sequence[str] = ()
    proxy_port: int | None = None

    @property
    def is_python(self) -> bool:
        """Whether the program is a module of Holdfast."""
        return self.command[0].startswith("holdfast.")


class ProgramLimitError(Exception):
    """The program was ended because it exceeded the limit `limit`."""

    def __init__(self, limit: LimitName) -> None:
        super().__init__(f"The program exceeded its limit of {limit}.")
        self.limit = limit


class ProgramKilledError(Exception):
    """Somebody else ended the program, for example the system when memory was short. Try again."""


async def run_program(call: ProgramCall, on_line: Callable[[str], None] | None = None) -> tuple[int, str]:
    """Run a program to its end. Return its exit code and the end of what it wrote to its standard error.

    `on_line` gets each line of the standard output. Raise ProgramLimitError if a limit was exceeded, and
    ProgramKilledError if it was killed. The program has ended when this function returns or raises.
    """
    output_read, output_write = os.pipe()
    with os.fdopen(output_read, "rb") as output:
        try:
            process = _start_launcher(call, output_write)
        finally:
            os.close(output_write)
        with process.output:
            log = await _run_to_end(call, process, output, on_line)
    exit_code = process.returncode or 0
    if exit_code == EXIT_TOO_MUCH_MEMORY:
        raise ProgramLimitError("memory")
    if exit_code == EXIT_TOO_MANY_PROCESSES:
        raise ProgramLimitError("processes")
    if exit_code == signal.SIGXFSZ:
        raise ProgramLimitError("bytes")
    if exit_code < 0 or exit_code in (signal.SIGKILL, signal.SIGTERM):
        raise ProgramKilledError("The program was killed from outside.")
    return exit_code, log


async def _run_to_end(
    call: ProgramCall, process: PipedProcess, output: IO[bytes], on_line: Callable[[str], None] | None
) -> str:
    try:
        async with asyncio.timeout(call.limits.timeout_s):
            return await _follow_program(call, process, output, on_line)
    except TimeoutError:
        raise ProgramLimitError("time") from None
    finally:
        await _stop_launcher(process)


def _start_launcher(call: ProgramCall, output_fd: int) -> PipedProcess:
    user = find_browser_user(UNPRIVILEGED_USER)
    if user is not None:
        _give_folder(call.folder, user)
    limits = call.limits
    input_fd = _open_request(call.request)
    launcher_options = {
        "worker_pid": os.getpid(),
        "input_fd": input_fd,
        "output_fd": output_fd,
        "max_memory_bytes": limits.max_memory_bytes,
        "max_processes": limits.max_processes,
        "profile": call.folder / ".no-profile",
        "work_folder": call.folder,
    }
    confinement_options = {
        "max_address_space_bytes": limits.max_address_space_bytes,
        "max_file_bytes": limits.max_file_bytes,
        "max_cpu_s": limits.max_cpu_s,
        "readable": os.pathsep.join(
            [*SYSTEM_LIBRARIES, *(find_python_folders() if call.is_python else ()), *call.readable]
        ),
        **({"proxy_port": call.proxy_port} if call.proxy_port else {}),
        **({"uid": user[0], "gid": user[1]} if user else {}),
    }
    options = [f"{name}={value}" for name, value in confinement_options.items()]
    if call.is_python:
        program = ["-m", call.command[0], *options, "--", *call.command[1:]]
    else:
        program = ["-IS", str(CONFINEMENT), *options, "--", *call.command]
    try:
        return PipedProcess(
            [
                sys.executable,
                "-IS",
                str(LAUNCHER),
                *(f"{name}={value}" for name, value in launcher_options.items()),
                "--",
                sys.executable,
                *program,
            ],
            pass_fds=(input_fd, output_fd),
            environment={
                **build_decoder_environment(),
                "PATH": "/nonexistent",
                "TMPDIR": ".",
                "YTDLP_NO_PLUGINS": "1",
                # The ffmpeg of the wheel is linked statically. It crashes when it converts the texts of an
                # MPEG transport stream with the modules of another C library.
                "GCONV_PATH": "/nonexistent",
            },
            # The folder is entered with the rights of the worker, so its parents may be closed to others.
            folder=call.folder,
        )
    finally:
        os.close(input_fd)


def _open_request(request: bytes) -> int:
    """Return a descriptor from which the request is read. A pipe holds it, and it is seen nowhere else."""
    read_fd, write_fd = os.pipe()
    os.write(write_fd, request[:MAX_REQUEST_BYTES])
    os.close(write_fd)
    return read_fd


def find_python_folders() -> list[str]:
    """Return the folders from which this Python loads its modules and libraries."""
    folders = {sys.prefix, sys.base_prefix, *(path for path in sys.path if path)}
    return sorted(folders | {str(Path(folder).resolve()) for folder in folders})


def _give_folder(folder: Path, user: tuple[int, int]) -> None:
    """Give the folder and its files to the user that runs the program."""
    for path in (folder, *folder.iterdir()):
        os.chown(path, *user, follow_symlinks=False)


async def _follow_program(
    call: ProgramCall,
    process: PipedProcess,
    output: IO[bytes],
    on_line: Callable[[str], None] | None,
) -> str:
    """Read the output, measure the folder and wait until the program ends."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_read_lines(output, on_line))
            log = group.create_task(_read_log(process))
            quota = group.create_task(_watch_folder(call.folder, call.limits.max_folder_bytes))
            await process.wait()
            quota.cancel()
    except* ProgramLimitError as group_error:
        raise group_error.exceptions[0] from None
    check_folder_size(call.folder, call.limits.max_folder_bytes)
    return log.result()


async def _read_lines(output: IO[bytes], on_line: Callable[[str], None] | None) -> None:
    async with open_pipe_reader(output) as reader:
        try:
            while line := await reader.readline():
                if on_line is not None:
                    on_line(line.decode("utf-8", "replace").rstrip("\n"))
        except ValueError:
            raise ProgramLimitError("output") from None


async def _read_log(process: PipedProcess) -> str:
    log = b""
    async with open_pipe_reader(process.output) as reader:
        while chunk := await reader.read(65536):
            # The beginning has the facts about the input, and the end has the error.
            log = log + chunk if len(log) < MAX_LOG_BYTES else log[: MAX_LOG_BYTES // 2] + chunk
    return log.decode("utf-8", "replace")


async def _watch_folder(folder: Path, max_bytes: int) -> None:
    while True:
        await asyncio.sleep(QUOTA_INTERVAL_S)
        check_folder_size(folder, max_bytes)


def check_folder_size(folder: Path, max_bytes: int) -> None:
    """Raise ProgramLimitError if the files of a folder are larger than allowed."""
    size = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                size += entry.stat(follow_symlinks=False).st_size
    if size > max_bytes:
        raise ProgramLimitError("bytes")


async def _stop_launcher(process: PipedProcess) -> None:
    """End the program. The launcher kills it when its standard input closes."""
    process.close_input()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        pass
    finally:
        if process.returncode is None:
            # A killed launcher takes the program with it.
            process.kill()
            await asyncio.shield(process.wait())

"""Confine this process: limits, an unprivileged user, one folder to write to, one port to connect to.

The launcher runs this file as a script, which then becomes another program:

    confinement.py NAME=VALUE ... -- COMMAND ...

The programs in Python call `confine_process` first. The file imports nothing but the
standard library. The working folder is the only folder that the process may write to. Landlock (Linux 5.13)
enforces it, and which files the process reads. Since Linux 6.7 it also forbids TCP connections, except to the
port of the guarded proxy. An older kernel enforces less; see decision 0021.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import struct
import sys

PR_SET_PDEATHSIG, PR_SET_KEEPCAPS, PR_SET_NO_NEW_PRIVS = 1, 8, 38
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
LANDLOCK_CREATE_RULESET_VERSION = 1
RULE_PATH_BENEATH, RULE_NET_PORT = 1, 2
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
REFER, TRUNCATE, IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
# The rights of the first version: read, write, execute, and create or remove any kind of entry.
BASIC_FILE_RIGHTS = (1 << 13) - 1
RIGHTS_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEVICE
BIND_TCP, CONNECT_TCP = 1, 2
CAPABILITY_VERSION_3 = 0x20080522
CAP_DAC_READ_SEARCH = 1 << 2
# The descriptors on which the launcher passes the input and the output.
INPUT_FD, OUTPUT_FD = 3, 4
LIMITS = (
    (resource.RLIMIT_AS, "max_address_space_bytes"),
    (resource.RLIMIT_FSIZE, "max_file_bytes"),
    (resource.RLIMIT_CPU, "max_cpu_s"),
)


def call_landlock(number: int, *arguments: object) -> int:
    result = int(ctypes.CDLL(None, use_errno=True).syscall(number, *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"Landlock call {number} failed.")
    return result


def get_landlock_version() -> int | None:
    """Return the version of Landlock in the kernel, or None if it has none or has switched it off."""
    try:
        return call_landlock(LANDLOCK_CREATE_RULESET, None, 0, LANDLOCK_CREATE_RULESET_VERSION)
    except OSError:
        return None


def get_file_rights(version: int) -> int:
    """Return the rights on files that this version of Landlock can forbid."""
    rights = BASIC_FILE_RIGHTS
    for first_version, right in ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEVICE)):
        rights |= right if version >= first_version else 0
    return rights


def add_path_rule(ruleset: int, path: str, rights: int) -> None:
    """Allow what `rights` says for a file, or for everything in a folder. A missing path is skipped."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        is_folder = os.path.isdir(path)  # noqa: PTH112  (pathlib is slow to import)
        rule = struct.pack("=Qi", rights if is_folder else rights & RIGHTS_OF_FILES, fd)
        call_landlock(LANDLOCK_ADD_RULE, ruleset, RULE_PATH_BENEATH, rule, 0)
        os.close(fd)


def create_ruleset(readable: list[str], proxy_port: int | None) -> int | None:
    """Return a ruleset that allows the working folder, `readable` and the proxy. None without Landlock."""
    version = get_landlock_version()
    if version is None:
        return None
    rights = get_file_rights(version)
    connections = BIND_TCP | CONNECT_TCP if version >= 4 else 0
    attributes = struct.pack("=QQ", rights, connections)[: 16 if version >= 4 else 8]
    ruleset = call_landlock(LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
    add_path_rule(ruleset, ".", rights & ~EXECUTE)
    add_path_rule(ruleset, "/dev/null", rights & (READ_FILE | WRITE_FILE))
    for path in readable:
        add_path_rule(ruleset, path, rights & (READ_FILE | READ_DIR | EXECUTE))
    if proxy_port is not None and connections:
        rule = struct.pack("=QQ", CONNECT_TCP, proxy_port)
        call_landlock(LANDLOCK_ADD_RULE, ruleset, RULE_NET_PORT, rule, 0)
    return ruleset


def drop_user(user: tuple[int, int], *, keep_reading: bool) -> None:
    """Become an unprivileged user. With `keep_reading`, the process still reads files of closed folders.

    A Python program loads modules while it runs, and Python may be installed where only root reads.
    """
    library = ctypes.CDLL(None, use_errno=True)
    library.prctl(PR_SET_KEEPCAPS, int(keep_reading), 0, 0, 0)
    os.setgroups([])
    os.setgid(user[1])
    os.setuid(user[0])
    if keep_reading:
        header = struct.pack("=Ii", CAPABILITY_VERSION_3, 0)
        data = struct.pack("=6I", CAP_DAC_READ_SEARCH, CAP_DAC_READ_SEARCH, 0, 0, 0, 0)
        if library.capset(header, data) != 0:
            raise OSError(ctypes.get_errno(), "The rights of the process cannot be dropped.")


def confine_process(options: dict[str, str], *, is_python: bool) -> None:
    """Give up all rights that the options do not name. The limits hold for all that follows."""
    library = ctypes.CDLL(None, use_errno=True)
    port = options.get("proxy_port")
    ruleset = create_ruleset(options["readable"].split(os.pathsep), int(port) if port else None)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for limit, name in LIMITS:
        resource.setrlimit(limit, (int(options[name]), int(options[name])))
    if "uid" in options:
        # Without Landlock this right would open every file of the machine.
        drop_user((int(options["uid"]), int(options["gid"])), keep_reading=is_python and ruleset is not None)
    # A change of the user resets this option, so it comes afterwards.
    library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    library.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if ruleset is not None:
        call_landlock(LANDLOCK_RESTRICT_SELF, ruleset, 0)
        os.close(ruleset)


def open_standard_streams() -> None:
    """Read from and write to the descriptors of the launcher."""
    os.dup2(INPUT_FD, 0)
    os.dup2(OUTPUT_FD, 1)
    os.closerange(INPUT_FD, OUTPUT_FD + 1)


def parse_options(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """Split `name=value ... -- command ...` into the options and the command."""
    split = arguments.index("--")
    return dict(argument.split("=", 1) for argument in arguments[:split]), arguments[split + 1 :]


def main() -> None:
    options, command = parse_options(sys.argv[1:])
    open_standard_streams()
    # The program may lie in a folder that only the worker's user can enter, so it is opened before.
    program = os.open(command[0], os.O_RDONLY | os.O_CLOEXEC)
    confine_process(options, is_python=False)
    with contextlib.suppress(FileNotFoundError):  # a script is read by its interpreter, which needs the path
        os.execve(program, command, os.environ)  # noqa: S606  # house: environment (passed on, not read)
    os.execv(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main()

"""Which Chromium is started, as which user, and with which switches."""

from __future__ import annotations

import os
import pwd
import shutil
from dataclasses import dataclass
from pathlib import Path

from holdfast import Settings
from holdfast.egress import GuardedProxy, chromium_arguments
from holdfast.systems.capture.errors import BrowserStartError

CHROMIUM_COMMANDS = ("chromium", "chromium-browser", "google-chrome", "chrome")
# Debian's command is a shell script that adds switches of its own. This is the program that it starts.
DEBIAN_CHROMIUM = Path("/usr/lib/chromium/chromium")
MIN_SHARED_MEMORY_BYTES = 1024 * 1024 * 1024
MAX_SCRIPT_HEAP_MB = 512


@dataclass(frozen=True, kw_only=True)
class BrowserOptions:
    """How Chromium is started, and its limits.

    Arguments:
        chromium: the path of the program (default: search for it)
        sandbox: whether Chromium uses its sandbox
        user: the user that runs Chromium if the worker is root
        max_memory_bytes: the maximum memory of all processes of the browser
        max_processes: the maximum number of processes of the browser
        max_open_pages: how many pages are open at once; more wait
        pages_per_browser: after how many pages the browser is replaced
        max_page_bytes: how many bytes one page may transfer
    """

    chromium: Path | None = None
    sandbox: bool = True
    user: str = "nobody"
    max_memory_bytes: int = 2 * 1024 * 1024 * 1024
    max_processes: int = 48
    max_open_pages: int = 2
    pages_per_browser: int = 100
    max_page_bytes: int = 100 * 1024 * 1024

    @classmethod
    def from_settings(cls, settings: Settings) -> BrowserOptions:
        """Return the options of the settings `chromium`, `chromium_sandbox` and `chromium_user`."""
        return cls(
            chromium=settings.chromium,
            sandbox=settings.chromium_sandbox == "on",
            user=settings.chromium_user,
        )


def find_chromium(path: Path | None = None) -> Path:
    """Return the path of Chromium. Raise BrowserStartError if it is not installed."""
    if path is not None:
        if not os.access(path, os.X_OK) or path.is_dir():
            raise BrowserStartError(
                f"The Chromium {str(path)!r} does not exist or is not executable.",
                fix="Correct HOLDFAST_CHROMIUM.",
            )
        return path
    if os.access(DEBIAN_CHROMIUM, os.X_OK):
        return DEBIAN_CHROMIUM
    command = next((path_text for name in CHROMIUM_COMMANDS if (path_text := shutil.which(name))), None)
    if command is None:
        raise BrowserStartError(
            "Chromium is not installed.",
            fix="Install it (Debian: apt-get install chromium), or set HOLDFAST_CHROMIUM to its path.",
        )
    return Path(command)


def find_browser_user(name: str) -> tuple[int, int] | None:
    """Return the user and group ids that Chromium gets, or None to keep those of the worker."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise BrowserStartError(
            f"The user {name!r} for Chromium does not exist.", fix="Correct HOLDFAST_CHROMIUM_USER."
        ) from None
    if entry.pw_uid == 0:
        raise BrowserStartError(
            "Chromium must not run as root.", fix="Set HOLDFAST_CHROMIUM_USER to an unprivileged user."
        )
    return entry.pw_uid, entry.pw_gid


def build_chromium_command(
    program: Path, options: BrowserOptions, profile: Path, proxy: GuardedProxy
) -> list[str]:
    """Return the command that starts Chromium without a window, and with all its traffic in the proxy."""
    return [
        str(program),
        "--headless",
        "--remote-debugging-pipe",
        f"--user-data-dir={profile}",
        *([] if options.sandbox else ["--no-sandbox"]),
        *([] if _has_enough_shared_memory() else ["--disable-dev-shm-usage"]),
        *chromium_arguments(proxy),
        "--disable-gpu",
        "--disable-breakpad",
        "--disable-crash-reporter",
        "--disable-hang-monitor",
        "--disable-notifications",
        "--disable-renderer-backgrounding",
        "--disable-backgrounding-occluded-windows",
        "--disable-background-timer-throttling",
        "--force-color-profile=srgb",
        "--hide-scrollbars",
        "--mute-audio",
        "--no-service-autorun",
        "--password-store=basic",
        "--use-mock-keychain",
        # One process for each site would multiply memory. Pages of different users never share a context.
        "--renderer-process-limit=4",
        f"--js-flags=--max-old-space-size={MAX_SCRIPT_HEAP_MB}",
        "--lang=en-US",
    ]


def build_chromium_environment(profile: Path) -> dict[str, str]:
    """Return the environment of Chromium. It has none of the worker's variables, which include secrets."""
    return {
        "HOME": str(profile),
        "TMPDIR": str(profile),
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        # Without an address, Chromium asks for a message bus and waits for it.
        "DBUS_SESSION_BUS_ADDRESS": "disabled:",
        "DBUS_SYSTEM_BUS_ADDRESS": "disabled:",
    }


def _has_enough_shared_memory() -> bool:
    try:
        volume = os.statvfs("/dev/shm")  # noqa: S108  (Chromium's own folder)
    except OSError:
        return False
    return volume.f_bavail * volume.f_frsize >= MIN_SHARED_MEMORY_BYTES

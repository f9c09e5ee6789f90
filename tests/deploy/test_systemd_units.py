"""The units of deploy/systemd, judged by systemd-analyze."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from deploy_files import find_command_problem
from outside_programs import find_program

ROOT = Path(__file__).resolve().parents[2]
UNITS = ROOT / "deploy" / "systemd"
UNIT_NAMES = sorted(path.name for path in UNITS.glob("*.service"))
SERVICE_NAMES = [name for name in UNIT_NAMES if name != "holdfast-migrate.service"]
MAX_EXPOSURE = 1.5
MAX_EXPOSURE_WITH_BROWSER = 2.5  # the sandbox of Chromium needs namespaces


@pytest.fixture(scope="session")
def systemd_analyze() -> str:
    return find_program("systemd")


@pytest.fixture
def installed_units(tmp_path: Path) -> Path:
    """The units as an administrator installs them, with an instance, and with a program that exists."""
    folder = tmp_path / "units"
    shutil.copytree(UNITS, folder)
    for path in folder.glob("*.service"):
        path.write_text(path.read_text().replace("/opt/holdfast/bin/holdfast", sys.executable))
    (folder / "holdfast-worker@.service").rename(folder / "holdfast-worker@browser.service")
    return folder


def run_verify(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    units = sorted(str(path) for path in folder.glob("*.service"))
    return subprocess.run(
        [program, "verify", "--man=no", *units], capture_output=True, text=True, check=False
    )  # fmt: skip


def read_unit(name: str) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=["="])
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNITS / name)
    return parser["Service"]


def test_verify_has_no_complaint(systemd_analyze: str, installed_units: Path) -> None:
    checked = run_verify(systemd_analyze, installed_units)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_verify_sees_a_mistake(systemd_analyze: str, installed_units: Path) -> None:
    unit = installed_units / "holdfast-api.service"
    unit.write_text(unit.read_text().replace("Restart=on-failure", "Restart=sometimes"))
    assert "restart specifier" in run_verify(systemd_analyze, installed_units).stderr


@pytest.mark.parametrize("name", UNIT_NAMES)
def test_exposure_is_low(systemd_analyze: str, name: str) -> None:
    assert judge_exposure(systemd_analyze, UNITS / name) <= MAX_EXPOSURE


def test_exposure_with_a_browser_is_moderate(systemd_analyze: str, installed_units: Path) -> None:
    exposure = judge_exposure(systemd_analyze, installed_units / "holdfast-worker@browser.service")
    assert MAX_EXPOSURE < exposure <= MAX_EXPOSURE_WITH_BROWSER


def judge_exposure(program: str, unit: Path) -> float:
    checked = subprocess.run(
        [program, "security", "--offline=yes", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
        check=True,
    )
    level = re.search(r"Overall exposure level for \S+: ([0-9.]+)", checked.stdout)
    assert level is not None
    return float(level[1])


def test_worker_may_finish_before_it_is_killed() -> None:
    unit = read_unit("holdfast-worker@.service")
    grace = re.search(r"--grace (\d+)s", unit["ExecStart"])
    assert grace is not None
    assert int(unit["TimeoutStopSec"]) >= int(grace[1]) + 15  # the release and the end of the process
    assert unit["KillMode"] == "mixed"  # child processes must not see SIGTERM before the worker


@pytest.mark.parametrize("name", SERVICE_NAMES)
def test_services_have_a_watchdog_and_a_memory_limit(name: str) -> None:
    unit = read_unit(name)
    assert unit["Type"] == "notify"
    assert int(unit["WatchdogSec"]) >= 30
    assert {"MemoryHigh", "MemoryMax", "TasksMax"} <= set(unit)


@pytest.mark.parametrize("name", UNIT_NAMES)
def test_commands_exist(name: str) -> None:
    """The command lines of the units are parsed by the real command line."""
    words = read_unit(name)["ExecStart"].replace("%i", "mail").replace("${CONCURRENCY}", "10").split()
    assert find_command_problem(words[1:]) is None

"""Lower bounds of dependencies exclude known vulnerabilities and are not above the locked versions."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
REQUIREMENT = re.compile(r"([A-Za-z0-9.-]+)(?:\[[^\]]*\])?>=([0-9.]+)")
# The first version without the vulnerability. `pip-audit` on an install of the lowest versions finds more.
FIRST_FIXED_VERSIONS = {
    "starlette": ("0.49.1", "CVE-2025-62727: quadratic time for a Range header"),
    "pyjwt": ("2.12", "CVE-2026-32597: unknown critical headers are accepted; CVE-2024-53861 in 2.10.0"),
    "cryptography": ("46.0.5", "CVE-2026-26007: missing check of points on binary curves"),
    "jinja2": ("3.1.6", "CVE-2025-27516: sandbox escape through the attr filter"),
    "h11": ("0.16", "CVE-2025-43859: request smuggling by lenient chunk endings"),
    "idna": ("3.7", "CVE-2024-3651: quadratic time for long names"),
    "httpcore": ("1.0.9", "requires the fixed h11"),
    "pypdf": ("6.10", "CVE-2025-62707 and later ones: endless loops and memory for crafted files"),
    "playwright": ("1.55.1", "CVE-2025-59288: browsers are downloaded without a check of the certificate"),
    "yt-dlp": ("2026.6.9", "GHSA-c6mh-fpjc-4pr3: files of dangerous types, and leaked cookies"),
    "pytest": ("9.0.3", "CVE-2025-71176: predictable temporary folder"),
}


def parse_version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text.partition(".post")[0]))


def read_lower_bounds() -> dict[str, str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    bounds: dict[str, str] = {}
    for line in [*project["dependencies"], *extras]:
        match = REQUIREMENT.match(line)
        if match is not None:
            bounds[match[1].lower().replace(".", "-")] = match[2]
        else:
            assert line.startswith("holdfast["), f"{line} has no lower bound"
    return bounds


def test_lower_bounds_exclude_versions_with_known_vulnerabilities() -> None:
    bounds = read_lower_bounds()
    for name, (fixed, advisory) in FIRST_FIXED_VERSIONS.items():
        assert parse_version(bounds[name]) >= parse_version(fixed), f"{name}: {advisory}"


def test_lower_bounds_are_not_above_the_locked_versions() -> None:
    lock = (ROOT / "requirements" / "dev.txt").read_text()
    locked = dict(re.findall(r"^([A-Za-z0-9.-]+)(?:\[[^\]]*\])?==([0-9.]+)", lock, re.MULTILINE))
    for name, bound in read_lower_bounds().items():
        assert name in locked, f"{name} is not locked"
        assert parse_version(bound) <= parse_version(locked[name]), f"{name}>={bound}, locked {locked[name]}"

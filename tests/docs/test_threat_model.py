"""Every line of the threat model names proofs that exist: attacks of `make attack`, and tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attack.attacks import ATTACKS_BY_NAME

ROOT = Path(__file__).parents[2]
SECURITY_PAGE = ROOT / "docs" / "operate" / "security.md"


def list_threats() -> list[tuple[str, str]]:
    """Return who attacks and the column of proofs, for each line of the table."""
    text = SECURITY_PAGE.read_text(encoding="utf-8").partition("## Threat model")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    return [(row[0].strip(), row[-1]) for row in rows[1:]]


@pytest.mark.parametrize(("who", "proof"), list_threats(), ids=lambda value: value[:30])
def test_the_proofs_of_a_threat_exist(who: str, proof: str) -> None:
    attacks = re.findall(r"`([^`]+)`", proof)
    paths = re.findall(r"tests/[\w/]+(?:\.py)?", proof)
    assert attacks or paths, f"{who}: nothing proves it"
    assert not set(attacks) - set(ATTACKS_BY_NAME)
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_every_attack_proves_something() -> None:
    named = {name for _, proof in list_threats() for name in re.findall(r"`([^`]+)`", proof)}
    assert named == set(ATTACKS_BY_NAME)

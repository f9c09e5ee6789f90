"""The reference of the Python names: what a reader needs, and nothing of the libraries below."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_type_hints

import pytest

from holdfast import CallOptions, SubmitOptions

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize("page", ["python.md", "python-modules.md"])
def test_reference_has_no_private_names_and_no_text_of_msgspec(page: str) -> None:
    text = (REFERENCE / page).read_text()
    assert "A base class for defining efficient" not in text  # the docstring of msgspec.Struct
    listed = re.findall(r"^- `([A-Za-z_.]+)", text, re.MULTILINE)
    listed += re.findall(r"^([A-Za-z_]\w*): ", text, re.MULTILINE)
    assert len(listed) > 50
    assert [name for name in listed if any(part.startswith("_") for part in name.split("."))] == []


@pytest.mark.parametrize("options", [SubmitOptions, CallOptions])
def test_every_option_has_its_meaning_and_its_type(options: type) -> None:
    text = (REFERENCE / "python.md").read_text()
    section = text.partition(f"\n### {options.__name__}\n")[2].partition("\n### ")[0]
    fields = section.partition("```text\n")[2].partition("```")[0]
    types = dict(re.findall(r"^(\w+): (.+)$", fields, re.MULTILINE))
    assert types.keys() == get_type_hints(options).keys()
    explained = {
        name.strip()
        for names in re.findall(r"^- `([^`]+)`", section, re.MULTILINE)
        for name in names.split(",")
    }
    assert types.keys() - explained == set()

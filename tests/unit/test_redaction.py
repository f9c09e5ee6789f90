"""Secrets are masked in payloads and texts, in every form in which a text may contain them."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest

from holdfast.redaction import MASK_TEXT, SecretMasker

ODD_SECRET = 'pä"ss\n& wörd/1'
SCHEMA: dict[str, Any] = {"properties": {"pin": {"type": "string", "format": "password"}}}


def build_masker(**args: object) -> SecretMasker:
    masker = SecretMasker()
    masker.collect_secrets(args, SCHEMA)
    return masker


@pytest.mark.parametrize(
    "text",
    [
        f"refused: {ODD_SECRET}",
        f"refused: {ODD_SECRET!r}",
        f"refused: {json.dumps(ODD_SECRET)}",
        f"refused: {json.dumps({'a': ODD_SECRET}, ensure_ascii=False)}",
        f"GET https://e.example/?q={quote(ODD_SECRET, safe='')}",
    ],
)
def test_a_secret_is_masked_however_it_is_written(text: str) -> None:
    masked = build_masker(api_token=ODD_SECRET).mask_text(text)
    assert "rd/1" not in masked
    assert "rd%2F1" not in masked
    assert MASK_TEXT in masked


@pytest.mark.parametrize("mark", ["…", " [...] ", ""])
def test_a_secret_that_a_limit_cut_off_is_masked(mark: str) -> None:
    secret = "correct-horse-battery"
    text = "x" * 300 + secret[:12] + mark + ("y" * 300 if mark else "")
    assert "horse" not in build_masker(password=secret).mask_text(text)
    if mark:
        text = "x" * 300 + mark + secret[-12:] + "y" * 300
        assert "attery" not in build_masker(password=secret).mask_text(text)


def test_a_field_that_only_a_schema_marks_is_masked_in_all_payloads_of_the_job() -> None:
    masker = build_masker(pin="4711-0815")
    masked = masker.mask_value({"echo": "pin 4711-0815", "pin": "x", "4711-0815": 1, "n": [4711]})
    assert masked == {"echo": f"pin {MASK_TEXT}", "pin": MASK_TEXT, MASK_TEXT: 1, "n": [4711]}
    assert build_masker(pin=47110815).mask_value({"n": 47110815, "yes": True}) == {
        "n": MASK_TEXT,
        "yes": True,
    }
    assert SecretMasker().mask_text("pin 4711-0815") == "pin 4711-0815"


def test_short_texts_keep_what_only_resembles_a_secret() -> None:
    assert build_masker(password="correct-horse").mask_text("this is correct") == "this is correct"

"""Secrets are masked in payloads and texts, in every form in which a text may contain them."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest

from holdfast.redaction import MASK_TEXT, UNMASKABLE_TEXT, SecretMasker

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


@pytest.mark.parametrize("length", [1_000, 2_500, 100_000])
def test_the_beginning_and_the_end_of_a_long_secret_are_masked(length: int) -> None:
    secret = "".join(f"{number:06d}." for number in range(length))[:length]
    masker = build_masker(api_token=secret)
    padding = "x" * 300
    assert masker.mask_text(padding + secret[: length - 100]) == padding + MASK_TEXT
    assert masker.mask_text(secret[100:] + padding) == MASK_TEXT + padding


def test_a_job_with_very_many_secrets_hides_its_texts() -> None:
    """Each text is searched for each secret, so thousands of them would keep the server busy for minutes."""
    secrets = [f"secret-{number}" for number in range(20_000)]
    masker = build_masker(tokens=secrets)
    assert masker.mask_text("login with secret-7 failed") == UNMASKABLE_TEXT
    payload = {"users": ["ann", "secret-7"], "tokens": secrets}
    assert masker.mask_value(payload) == {"users": ["ann", MASK_TEXT], "tokens": MASK_TEXT}


def test_texts_with_nul_characters_stay_separate() -> None:
    masker = build_masker(api_token="b\0c1234")
    assert masker.mask_value(["a", "b\0c1234", "x\0"]) == ["a", MASK_TEXT, "x\0"]
    assert masker.mask_value(["ab", "c1234"]) == ["ab", "c1234"]


def test_many_texts_are_masked_in_their_places() -> None:
    masker = build_masker(api_token="hunter22")
    payload = {"hunter22": ["a hunter22 b", 5, None, {"x": "hunter22"}], "y": ("password=abcdef", "ok")}
    assert masker.mask_value(payload) == {
        MASK_TEXT: [f"a {MASK_TEXT} b", 5, None, {"x": MASK_TEXT}],
        "y": [f"password={MASK_TEXT}", "ok"],
    }


@pytest.mark.parametrize("value", [5, 1.5, None, True, [], {}, [1, {}]])
def test_payloads_without_texts_stay_as_they_are(value: Any) -> None:
    assert build_masker(api_token="hunter22").mask_value(value) == value

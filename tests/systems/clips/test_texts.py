"""Captions, passages, signatures, answers of models and the local summary, without a database."""

from __future__ import annotations

import random
from typing import Any

from holdfast.systems.captions import parse_captions
from holdfast.systems.clips.enrichment import parse_enrichment, split_text
from holdfast.systems.clips.local_enrichment import extract_summary, extract_tags, extract_title
from holdfast.systems.clips.messages import parse_clip_id
from holdfast.systems.clips.passages import compute_signature, normalize_vector, split_transcript
from holdfast.systems.providers.http_scraping import find_platform, read_scraped_media

ROLLING = """WEBVTT
Kind: captions
Language: en

00:00:00.000 --> 00:00:02.000 align:start position:0%

so<00:00:00.500><c> today</c><00:00:01.000><c> we</c>

00:00:02.000 --> 00:00:02.010
so today we

00:00:02.010 --> 00:00:04.000
so today we
cook &amp; eat
"""


def test_rolling_captions_say_each_line_once() -> None:
    assert parse_captions(ROLLING) == ((0.0, 2.0, "so today we"), (2.01, 4.0, "cook & eat"))


def test_captions_in_other_formats() -> None:
    subrip = "1\n00:01:02,500 --> 00:01:03,000\nHello\nthere\n\n2\n01:00:00,000 --> 01:00:01,000\nBye\n"
    assert parse_captions(subrip) == ((62.5, 63.0, "Hello there"), (3600.0, 3601.0, "Bye"))
    events = (
        '{"events": [{"tStartMs": 1500, "dDurationMs": 500, "segs": [{"utf8": "a "}, {"utf8": "b"}]}, 7]}'
    )
    assert parse_captions(events) == ((1.5, 2.0, "a b"),)
    for nonsense in ("", "{", '{"events": 3}', "<html>no captions</html>", "00:00 --> x", "[" * 100_000):
        assert parse_captions(nonsense) == ()


def test_right_to_left_and_other_scripts_are_kept() -> None:
    lines = ["مرحبا بالعالم", "今日は料理をします。"]
    text = "\n\n".join(f"00:00:0{number},000 --> 00:00:09,000\n{line}" for number, line in enumerate(lines))
    assert [segment[2] for segment in parse_captions(text)] == lines
    assert extract_summary("مرحبا بالعالم. هذا فيديو عن الطبخ. الطبخ ممتع؟").startswith("مرحبا")
    assert extract_summary("今日は料理をします。") == "今日は料理をします。"
    assert extract_tags("今日は料理をします。") == []


def test_three_hours_become_passages_with_times_that_cover_everything() -> None:
    segments = [
        (number * 3.0, number * 3.0 + 3, f"word{number} and some more words here") for number in range(3600)
    ]
    passages = split_transcript("", segments)
    assert 100 < len(passages) < 400
    assert (passages[0].start, passages[-1].end) == (0.0, 10800.0)
    assert [passage.number for passage in passages] == list(range(len(passages)))
    assert " ".join(passage.text for passage in passages) == " ".join(text for _, _, text in segments)
    assert all(len(passage.text) <= 1000 for passage in passages)
    parts = split_text(" ".join(text for _, _, text in segments))
    assert len(parts) > 4
    assert max(map(len, parts)) < 26_000


def test_a_text_without_times_or_spaces_is_split_too() -> None:
    passages = split_transcript("x" * 5000, ())
    assert (len(passages), passages[0].start) == (5, None)
    assert split_transcript("", ()) == []


def test_signatures_of_near_vectors_differ_in_few_bits() -> None:
    numbers = random.Random(1)
    for dimension in (64, 256, 1536):
        vector = [numbers.gauss(0, 1) for _ in range(dimension)]
        near = [value + numbers.gauss(0, 0.2) for value in vector]
        far = [numbers.gauss(0, 1) for _ in range(dimension)]
        bits = compute_signature(vector)
        assert len(bits) == 256

        def count_different(other: list[float], bits: str = bits) -> int:
            return sum(a != b for a, b in zip(bits, compute_signature(other), strict=True))

        assert count_different(near) < count_different(far) / 2
    assert abs(sum(value**2 for value in normalize_vector([3, 4])) - 1) < 1e-9
    assert normalize_vector([0.0, 0.0]) == [0.0, 0.0]


def test_answers_of_models() -> None:
    good = parse_enrichment('{"title": " A\\u0000 b ", "summary": "S.", "tags": "X, #y"}', "m")
    assert good is not None
    assert (good.title, good.summary, good.tags) == ("A b", "S.", ["x", "y"])
    for bad in ("", "[]", '{"summary": ""}', '{"title": "x"}', '{"summary": "cut o', "null", "{" * 100_000):
        assert parse_enrichment(bad, "m") is None


def test_the_local_summary_uses_sentences_of_the_text() -> None:
    text = (
        "Welcome back. Today we bake bread with rye flour. Rye flour needs more water than wheat flour. "
        "My cat says hello. The bread rests for an hour. Then the bread is baked."
    )
    summary = extract_summary(text)
    assert "rye flour" in summary.lower()
    assert "cat" not in summary
    assert extract_tags(text)[:2] == ["bread", "flour"]
    assert extract_title(text) == "Welcome back"
    assert (extract_summary(""), extract_tags(""), extract_title("")) == ("", [], None)
    assert extract_summary("word " * 50_000)


def test_facts_of_scraped_videos() -> None:
    tiktok = read_scraped_media(
        {"aweme_detail": {"desc": "Dance", "author": {"nickname": "Ann"}, "video": {
            "duration": 15000, "cover": {"url_list": ["https://p.com/1"]}}},
         "transcript": "WEBVTT\n\n00:00:00.000 --> 00:00:01.000\nla la\n"}, "api")  # fmt: skip
    assert (tiktok.title, tiktok.author, tiktok.duration_s) == ("Dance", "Ann", 15.0)
    assert (tiktok.thumbnail_url, tiktok.segments) == ("https://p.com/1", ((0.0, 1.0, "la la"),))
    assert find_platform("https://m.youtube.com/x") == "youtube"
    assert find_platform("https://notyoutube.com/x") == "generic"


def test_ids_in_messages() -> None:
    assert parse_clip_id({"video_id": "a"}) == "a"
    assert parse_clip_id({"record": {"id": 7}}) == "7"
    bodies: list[Any] = [
        None,
        [],
        {},
        {"id": ""},
        {"id": True},
        {"id": -1},
        {"id": "x" * 100},
        {"record": []},
    ]
    for body in bodies:
        assert parse_clip_id(body) is None

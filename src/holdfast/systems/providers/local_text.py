"""Local text provider: fixed sentences, selected by the subject, without a language model.

The texts contain no knowledge beyond the subject, and say so. This provider exists so that everything works
without network and key, and so that tests and demonstrations have text of realistic length. For texts that
are worth reading, set `text_url`.
"""

from __future__ import annotations

import hashlib
import random
from typing import Any

import msgspec

from holdfast.systems.providers.errors import ProviderRefusedError
from holdfast.systems.providers.metering import CallMeter
from holdfast.systems.providers.protocols import GeneratedText
from holdfast.systems.providers.usage import UsageAccount

LOCAL_AUTHOR_NAME = "the local writer"
LOCAL_TEXT_DISCLAIMER = "Written by the local writer, without a language model."
PARAGRAPHS_PER_CHAPTER, SENTENCES_PER_PARAGRAPH = 3, 4

OPENING_SENTENCES = (
    "{title} begins with a question: {question}",
    "Every pair of people answers it in their own way: {question}",
    "One may ask it at breakfast, or after ten years: {question}",
)
MIDDLE_SENTENCES = (
    "{a} tends to answer before the question is finished, and {b} likes to sleep on it.",
    "Where {a} looks for the shortest way, {b} looks for the one with a view.",
    "{b} keeps what {a} would have given away, and both are right about it on different days.",
    "Seen through the {system} tradition, this is less a quarrel than a change of pace.",
    "The {system} reading puts the weight on what {a} does when nobody is looking.",
    "In the words of the {system} school, {b} carries the map and {a} carries the lamp.",
    "It helps to say aloud what seems obvious; {a} and {b} find different things obvious.",
    "Neither of them wins by being faster, and neither loses by waiting a day.",
    "What {a} calls order, {b} calls a beginning.",
    "There is a habit here that serves them well: they return to a thing that was left unfinished.",
    "Small promises matter more than large ones, and the two keep their small ones.",
    "When {b} is tired, {a} does well to ask once and then to make tea.",
    "A letter, a walk, or a list on the kitchen table does more than a long evening of talk.",
    "They are {gap} apart, which shows in music and hardly anywhere else.",
    "{a}, born on a {day_a}, starts the week where {b}, born on a {day_b}, would rather end it.",
    "The number {path_a} stands beside {a}'s name, and {path_b} beside {b}'s; both are easily counted.",
    "The {system} tradition has an old name for this, and an older remedy: patience.",
    "It would be a mistake to mend everything at once.",
    "Both of them have learned to laugh at the right moment, which is rarer than it sounds.",
    "What is strong in one is seldom missing in the other; it only goes by another name.",
)
CLOSING_SENTENCES = (
    "So much for this part; what comes of it is theirs to decide.",
    "If there is one thing to take along from these pages, let it be a little time.",
    "None of this is certain, and none of it has to be.",
)


class LocalTextProvider:
    """A `TextProvider` that composes fixed sentences, without a language model."""

    def __init__(self, meter: CallMeter | None = None) -> None:
        self._meter = meter or CallMeter.create_local("text", "sentences")

    @property
    def limit_key(self) -> str:
        return "text:local"

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    async def generate_text(self, instructions: str, subject: str, *, account: UsageAccount) -> GeneratedText:
        del instructions  # this provider writes one type of text only
        async with self._meter.measure_call(account):
            try:
                fields = msgspec.json.decode(subject, type=dict[str, Any])
            except msgspec.MsgspecError:
                raise ProviderRefusedError(
                    "The local text provider needs a subject that is a JSON object."
                ) from None
            return GeneratedText(compose_chapter_text(fields), LOCAL_AUTHOR_NAME)


def compose_chapter_text(subject: dict[str, Any]) -> str:
    """Compose a few paragraphs about two people. The same subject always gives the same text."""
    chapter: dict[str, Any] = subject.get("chapter") or {}
    first: dict[str, Any] = subject.get("person1") or {}
    second: dict[str, Any] = subject.get("person2") or {}
    system_names: list[Any] = subject.get("systems") or []
    facts: dict[str, Any] = subject.get("facts") or {}
    values = {
        "a": str(first.get("name") or "The first"),
        "b": str(second.get("name") or "the second"),
        "title": str(chapter.get("title") or "This chapter"),
        "question": str(chapter.get("question") or "what now?"),
        "gap": _format_years(facts.get("years_apart")),
        "day_a": str(facts.get("weekday1") or "weekday"),
        "day_b": str(facts.get("weekday2") or "weekday"),
        "path_a": str(facts.get("path1") or "one"),
        "path_b": str(facts.get("path2") or "two"),
    }
    systems = [str(name) for name in system_names] or ["oldest"]
    rng = random.Random(hashlib.sha256(f"{values}{systems}".encode()).digest())  # noqa: S311  (no secret)
    statements = list(MIDDLE_SENTENCES)
    rng.shuffle(statements)
    paragraphs = [_fill_placeholders(rng.choice(OPENING_SENTENCES), values, systems, rng)]
    for number in range(PARAGRAPHS_PER_CHAPTER):
        sentences = statements[number * SENTENCES_PER_PARAGRAPH : (number + 1) * SENTENCES_PER_PARAGRAPH]
        paragraphs.append(" ".join(_fill_placeholders(each, values, systems, rng) for each in sentences))
    return "\n\n".join([*paragraphs, rng.choice(CLOSING_SENTENCES), LOCAL_TEXT_DISCLAIMER])


def _format_years(years: Any) -> str:
    if not isinstance(years, int):
        return "some years"
    return {0: "less than a year", 1: "one year"}.get(years, f"{years} years")


def _fill_placeholders(sentence: str, values: dict[str, str], systems: list[str], rng: random.Random) -> str:
    """Fill the placeholders of a sentence in one pass. Braces inside a value are not expanded."""
    values = {**values, "system": rng.choice(systems).replace("_", " ")}
    parts = sentence.split("{")
    filled = [parts[0]]
    for part in parts[1:]:
        name, _, rest = part.partition("}")
        filled.append(values[name] + rest)
    return "".join(filled)

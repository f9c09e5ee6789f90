"""The local writer: sentences from a stock, chosen by what is asked and always the same for the same.

It knows no more than it is given and says so. It is there so that everything works without network or key,
and so that tests and demonstrations have real text of a real length; for reading matter set `text_url`.
"""

from __future__ import annotations

import hashlib
import random
from typing import Any

import msgspec

from holdfast.systems.providers import ProviderError, Written

BY = "the local writer"
NOTE = "Written by the local writer, without a language model."
PARAGRAPHS, SENTENCES = 3, 4

OPENINGS = (
    "{title} begins with a question: {question}",
    "Every pair of people answers it in their own way: {question}",
    "One may ask it at breakfast, or after ten years: {question}",
)
STATEMENTS = (
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
    "They are {gap} apart in years, which shows in music and hardly anywhere else.",
    "{a}, born on a {day_a}, starts the week where {b}, born on a {day_b}, would rather end it.",
    "The number {path_a} stands beside {a}'s name, and {path_b} beside {b}'s; both are easily counted.",
    "The {system} tradition has an old name for this, and an older remedy: patience.",
    "It would be a mistake to mend everything at once.",
    "Both of them have learned to laugh at the right moment, which is rarer than it sounds.",
    "What is strong in one is seldom missing in the other; it only goes by another name.",
)
CLOSINGS = (
    "So much for this part; what comes of it is theirs to decide.",
    "If there is one thing to take along from these pages, let it be a little time.",
    "None of this is certain, and none of it has to be.",
)


class LocalWriter:
    key = "text:local"

    async def write(self, instructions: str, subject: str) -> Written:
        del instructions  # it can do one thing only
        try:
            given = msgspec.json.decode(subject, type=dict[str, Any])
        except msgspec.MsgspecError:
            raise ProviderError("The local writer was given something it cannot read.") from None
        return Written(compose(given), BY)


def compose(given: dict[str, Any]) -> str:
    """A few paragraphs about two people, with the names as they were typed."""
    chapter: dict[str, Any] = given.get("chapter") or {}
    first: dict[str, Any] = given.get("person1") or {}
    second: dict[str, Any] = given.get("person2") or {}
    named: list[Any] = given.get("systems") or []
    facts: dict[str, Any] = given.get("facts") or {}
    words = {
        "a": str(first.get("name") or "The first"),
        "b": str(second.get("name") or "the second"),
        "title": str(chapter.get("title") or "This chapter"),
        "question": str(chapter.get("question") or "what now?"),
        "gap": str(facts.get("years_apart", "some")),
        "day_a": str(facts.get("weekday1") or "weekday"),
        "day_b": str(facts.get("weekday2") or "weekday"),
        "path_a": str(facts.get("path1") or "one"),
        "path_b": str(facts.get("path2") or "two"),
    }
    systems = [str(each) for each in named] or ["oldest"]
    dice = random.Random(hashlib.sha256(f"{words}{systems}".encode()).digest())  # noqa: S311  (no secret)
    stock = list(STATEMENTS)
    dice.shuffle(stock)
    paragraphs = [_filled(dice.choice(OPENINGS), words, systems, dice)]
    for number in range(PARAGRAPHS):
        chosen = stock[number * SENTENCES : (number + 1) * SENTENCES]
        paragraphs.append(" ".join(_filled(each, words, systems, dice) for each in chosen))
    return "\n\n".join([*paragraphs, dice.choice(CLOSINGS), NOTE])


def _filled(sentence: str, words: dict[str, str], systems: list[str], dice: random.Random) -> str:
    """Each word put in once: a name that looks like a placeholder is a name."""
    values = {**words, "system": dice.choice(systems).replace("_", " ")}
    parts = sentence.split("{")
    filled = [parts[0]]
    for part in parts[1:]:
        name, _, rest = part.partition("}")
        filled.append(values[name] + rest)
    return "".join(filled)

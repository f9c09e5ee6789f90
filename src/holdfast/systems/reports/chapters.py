"""The sixteen documents of a report, and what the phases of the work weigh.

A job's percent is the weighted share of its tasks, so the weights are the contract: 10 for calculating (5
while it runs), 40 for the texts, 20 for the PDFs, 25 for the recordings, 5 for finalizing. The phase is the
one whose range the percent is in.
"""

from __future__ import annotations

from typing import Final

import msgspec


class Chapter(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    slug: str
    title: str
    question: str


_TITLES: Final = (
    ("portraits", "Portraits", "who are these two, before they meet?"),
    ("hunger", "Hunger", "what does each of them want and seldom say?"),
    ("shelter", "Shelter", "where does each of them go when it rains?"),
    ("speech", "Speech", "how do they talk, and how do they fall silent?"),
    ("work", "Work", "what do they make when they make something together?"),
    ("money", "Money", "what is enough?"),
    ("time", "Time", "who waits, and who is late?"),
    ("anger", "Anger", "what do they do with heat?"),
    ("play", "Play", "when did they last laugh for no reason?"),
    ("body", "Body", "what do they know without thinking?"),
    ("family", "Family", "which rooms of childhood do they still live in?"),
    ("distance", "Distance", "how far apart is close enough?"),
    ("trust", "Trust", "what has been lent, and what was returned?"),
    ("change", "Change", "what will be different in ten years?"),
    ("promise", "Promise", "what could they say aloud to each other?"),
    ("verdict", "Verdict", "and taken all together?"),
)
CHAPTERS: Final = tuple(
    Chapter(number=number, slug=slug, title=title, question=question)
    for number, (slug, title, question) in enumerate(_TITLES, 1)
)
BY_SLUG: Final = {chapter.slug: chapter for chapter in CHAPTERS}

CALCULATING, TEXTS, PDFS, RECORDINGS, FINALIZING = 10.0, 40.0, 20.0, 25.0, 5.0
TEXT, PDF, AUDIO = (whole / len(CHAPTERS) for whole in (TEXTS, PDFS, RECORDINGS))
# Above which percent a phase begins.
PHASES: Final = (
    (95.0, "finalizing"),
    (70.0, "audio"),
    (50.0, "pdf"),
    (10.0, "text"),
    (0.0, "calculating"),
)


def phase_of(status: str, percent: float) -> str:
    """The phase of a job by the contract's statuses and ranges."""
    if status in ("queued", "complete"):
        return status
    return next(name for begins, name in PHASES if percent >= begins)

"""The sixteen chapters of a report, and the weights of its tasks.

The percentage of a job is the weighted share of its finished tasks, so the weights implement the contract: 10
for calculating (5 while it runs), 40 for the texts, 20 for the PDFs, 25 for the recordings, 5 for finalizing.
The phase follows from the range that contains the percentage.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec


class Chapter(msgspec.Struct, frozen=True, kw_only=True):
    """A chapter of a report, with its title and the question that its text answers."""

    number: int
    slug: str
    title: str
    question: str


_CHAPTER_SPECS: Final = (
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
    for number, (slug, title, question) in enumerate(_CHAPTER_SPECS, 1)
)
CHAPTERS_BY_SLUG: Final = {chapter.slug: chapter for chapter in CHAPTERS}

# Weights of tasks. They add up to 100.
CALCULATING_WEIGHT: Final = 10.0
CHAPTER_TEXT_WEIGHT: Final = 40.0 / len(CHAPTERS)
CHAPTER_PDF_WEIGHT: Final = 20.0 / len(CHAPTERS)
CHAPTER_AUDIO_WEIGHT: Final = 25.0 / len(CHAPTERS)
FINALIZING_WEIGHT: Final = 5.0
# The percentage at which each phase begins.
PHASE_START_PERCENTS: Final = (
    (95.0, "finalizing"),
    (70.0, "audio"),
    (50.0, "pdf"),
    (10.0, "text"),
    (0.0, "calculating"),
)


TASK_WEIGHTS: Final = {
    "calculating": CALCULATING_WEIGHT,
    "text": CHAPTER_TEXT_WEIGHT,
    "pdf": CHAPTER_PDF_WEIGHT,
    "audio": CHAPTER_AUDIO_WEIGHT,
    "finalizing": FINALIZING_WEIGHT,
}


def compute_succeeded_percent(succeeded_tasks: Iterable[str]) -> float:
    """Compute the share of a report that has succeeded, in percent, from the names of its tasks."""
    return sum(TASK_WEIGHTS.get(name.partition(" ")[0], 0.0) for name in succeeded_tasks)


def get_report_phase(status: str, percent: float) -> str:
    """Return the phase of a report, such as "audio", for a status and a percentage."""
    if status in ("queued", "complete"):
        return status
    return next(name for start, name in PHASE_START_PERCENTS if percent >= start)

"""The boundaries of the stages of a clip at which the run `clips-kills` kills workers."""

from __future__ import annotations

from typing import Final

from holdfast.systems.clips.messages import ENRICH_QUEUE, SCRAPE_QUEUE

# The steps whose answers are kept, and the boundaries that follow.
BOUNDARY_BY_STEP: Final = {
    "source scraping": "scraping answered",
    "summary": "summary answered",
    "embedding": "embedding answered",
}
BOUNDARIES: Final = (
    f"{SCRAPE_QUEUE} read",
    f"{SCRAPE_QUEUE} begun, not committed",
    "scraping answered",
    "handed over, not committed",
    f"{SCRAPE_QUEUE} finished",
    f"{ENRICH_QUEUE} read",
    f"{ENRICH_QUEUE} begun, not committed",
    "summary answered",
    "embedding answered",
    "done, not committed",
    f"{ENRICH_QUEUE} finished",
)

"""The messages of the two queues: which clip they stand for."""

from __future__ import annotations

from typing import Any, Final, Literal, cast

SCRAPE_QUEUE: Final = "scrape_jobs"
ENRICH_QUEUE: Final = "enrich_jobs"
ClipQueue = Literal["scrape_jobs", "enrich_jobs"]
# The name of our own messages first, then those that edge functions have used.
_ID_FIELDS: Final = ("video_id", "videoId", "clip_id", "clipId", "id")
MAX_ID_CHARS: Final = 64


def parse_clip_id(body: object) -> str | None:
    """Return the id of the clip that a message names, as text, or None if it names no clip.

    A message may also be the body of a database webhook, with the row in `record`.
    """
    if not isinstance(body, dict):
        return None
    fields = cast("dict[str, Any]", body)
    for name in _ID_FIELDS:
        value = fields.get(name)
        if isinstance(value, str) and 0 < len(value) <= MAX_ID_CHARS:
            return value
        if type(value) is int and value >= 0:
            return str(value)
    return parse_clip_id(fields["record"]) if isinstance(fields.get("record"), dict) else None

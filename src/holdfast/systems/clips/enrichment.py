"""Summary, tags and title of a transcript: by a language model that answers in JSON, or the local default.

A long transcript is split: each part is summarised, then the summaries. Every answer is a step that is kept,
so none is paid for twice. A malformed answer is repaired if it contains the JSON, and else asked for again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec

from holdfast.systems.clips import local_enrichment
from holdfast.systems.clips.passages import split_transcript
from holdfast.systems.clips.provider_gate import ProviderGate
from holdfast.systems.clips.step_store import ClipSteps
from holdfast.systems.providers import (
    CallMeter,
    JsonTextProvider,
    ProviderResponseError,
    ProviderUsage,
    UsageAccount,
)
from holdfast.systems.providers.openai_text import remove_unprintable_characters

PART_CHARS: Final = 24_000
MAX_PARTS: Final = 40
MAX_ANSWERS: Final = 3  # malformed answers that are asked for again, in one attempt
MAX_TITLE_CHARS: Final = 200
MAX_SUMMARY_CHARS: Final = 5_000
MAX_TAGS: Final = 12
MAX_TAG_CHARS: Final = 60
TEXT_FIELDS: Final = ("title", "summary")
ENRICHMENT_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "summary": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["title", "summary", "tags"],
    "additionalProperties": False,
}
INSTRUCTIONS: Final = (
    "You describe a video from its transcript. Answer with a JSON object: `title`, a short title; `summary`, "
    "two to five sentences that say what the video says; `tags`, three to eight short topics in lower case. "
    "Write in the language of the transcript."
)
PART_INSTRUCTIONS: Final = f"{INSTRUCTIONS} This is part {{number}} of {{count}} of the transcript."
MERGE_INSTRUCTIONS: Final = f"{INSTRUCTIONS} The subject has summaries of the parts of the video, in order."
REPAIR_INSTRUCTIONS: Final = (
    " Your last answer was not valid. Answer only with the JSON object, without any other text."
)


class Enrichment(msgspec.Struct, frozen=True, kw_only=True):
    """What was made of a transcript. `by` names the model; `notice` tells the user what to expect of it."""

    title: str | None
    summary: str
    tags: list[str]
    by: str
    notice: str | None = None


class LocalEnricher:
    """Enriches without a language model."""

    def __init__(self, meter: CallMeter) -> None:
        self._meter = meter

    async def enrich(
        self, title: str | None, transcript: str, *, steps: ClipSteps, account: UsageAccount
    ) -> Enrichment:
        del steps  # it costs nothing to do it again
        async with self._meter.measure_call(account) as call:
            call.usage = ProviderUsage()
            return Enrichment(
                title=title or local_enrichment.extract_title(transcript),
                summary=local_enrichment.extract_summary(transcript),
                tags=local_enrichment.extract_tags(transcript, title),
                by=local_enrichment.LOCAL_ENRICHER,
                notice=local_enrichment.LOCAL_NOTICE,
            )


class ModelEnricher:
    """Enriches with a language model."""

    def __init__(self, provider: JsonTextProvider) -> None:
        self._provider = provider
        self._gate = ProviderGate()

    async def enrich(
        self, title: str | None, transcript: str, *, steps: ClipSteps, account: UsageAccount
    ) -> Enrichment:
        """Return the enrichment of a transcript. Raise a `ProviderError` if the model fails."""
        parts = split_text(transcript)
        if len(parts) > 1:
            summaries: list[str] = []
            for number, part in enumerate(parts, 1):
                instructions = PART_INSTRUCTIONS.format(number=number, count=len(parts))
                answer = await self._run_step(f"part {number}", instructions, title, part, steps, account)
                summaries.append(f"{number}. {answer.summary} ({', '.join(answer.tags)})")
            instructions, subject = MERGE_INSTRUCTIONS, "\n".join(summaries)
        else:
            instructions, subject = INSTRUCTIONS, transcript
        return await self._run_step("summary", instructions, title, subject, steps, account)

    async def _run_step(
        self,
        step: str,
        instructions: str,
        title: str | None,
        text: str,
        steps: ClipSteps,
        account: UsageAccount,
    ) -> Enrichment:
        subject = f"Title: {title or 'unknown'}\n\n{text}"

        async def ask() -> Enrichment:
            return await self._ask(instructions, subject, account)

        return await steps.run(step, Enrichment, ask)

    async def _ask(self, instructions: str, subject: str, account: UsageAccount) -> Enrichment:
        prompt = instructions
        for _ in range(MAX_ANSWERS):

            async def send(prompt: str = prompt) -> Any:
                return await self._provider.generate_json(prompt, subject, ENRICHMENT_SCHEMA, account=account)

            generated = await self._gate.call(send)
            enrichment = parse_enrichment(generated.text, generated.author)
            if enrichment is not None:
                return enrichment
            prompt = instructions + REPAIR_INSTRUCTIONS
        raise ProviderResponseError("The text provider did not return a summary in the form of the schema.")


def split_text(transcript: str) -> list[str]:
    """Split a long transcript into parts that fit into one request, between sentences if possible."""
    if len(transcript) <= PART_CHARS:
        return [transcript]
    parts: list[str] = [""]
    for passage in split_transcript(transcript, ()):
        if parts[-1] and len(parts[-1]) + len(passage.text) > PART_CHARS:
            parts.append("")
        parts[-1] += f"{passage.text} "
    return [part.strip() for part in parts[:MAX_PARTS]]


def parse_enrichment(text: str, by: str) -> Enrichment | None:
    """Read the answer of a model: JSON, also inside other text. Return None if it is not valid."""
    for candidate in (text, *find_objects(text)):
        try:
            value = msgspec.json.decode(candidate, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
        title, summary = (value.get(name) for name in TEXT_FIELDS)
        tags = value.get("tags")
        if isinstance(tags, str):
            tags = tags.split(",")
        if not isinstance(summary, str) or not isinstance(tags, list) or not summary.strip():
            continue
        return Enrichment(
            title=clean_text(title, MAX_TITLE_CHARS) if isinstance(title, str) else None,
            summary=remove_unprintable_characters(summary)[:MAX_SUMMARY_CHARS],
            tags=clean_tags(cast("Sequence[Any]", tags)),
            by=by,
        )
    return None


def find_objects(text: str) -> list[str]:
    """Return what looks like a JSON object in a text, without commas before a closing bracket."""
    start, end = text.find("{"), text.rfind("}")
    if not 0 <= start < end:
        return []
    candidate = text[start : end + 1]
    return [candidate, re.sub(r",(\s*[}\]])", r"\1", candidate)]


def clean_tags(tags: Sequence[Any]) -> list[str]:
    """Return tags in lower case, each once, without # and of limited length."""
    clean = (clean_text(tag, MAX_TAG_CHARS).lstrip("#").lower() for tag in tags if isinstance(tag, str))
    return list(dict.fromkeys(tag for tag in clean if tag))[:MAX_TAGS]


def clean_text(text: str, max_chars: int) -> str:
    """Return a text as one line without control characters."""
    return " ".join(remove_unprintable_characters(text).split())[:max_chars]

"""What a worker of the clip system opens once, and the work of its two stages."""

from __future__ import annotations

import importlib.util
from datetime import timedelta
from typing import Any, Final

import msgspec

from holdfast import Client, Message
from holdfast.errors import RefusedError
from holdfast.systems.clips import passage_queries
from holdfast.systems.clips import stage_queries as queries
from holdfast.systems.clips.embedding import ClipEmbedder
from holdfast.systems.clips.enrichment import Enrichment, LocalEnricher, ModelEnricher
from holdfast.systems.clips.local_enrichment import LOCAL_ENRICHER
from holdfast.systems.clips.messages import ENRICH_QUEUE, SCRAPE_QUEUE
from holdfast.systems.clips.passages import split_transcript
from holdfast.systems.clips.progress import ClipProgress, open_progress
from holdfast.systems.clips.provider_gate import ProviderGate
from holdfast.systems.clips.scraping import ClipScraper, KeptTranscripts, ScrapedClip
from holdfast.systems.clips.stage_queries import ClipState
from holdfast.systems.clips.stages import StageRunner
from holdfast.systems.clips.step_store import SOURCE_PREFIX, ClipSteps, ClipUsageRecorder
from holdfast.systems.media.contracts import TranscriptionProvider
from holdfast.systems.media.transcripts import create_transcription_provider
from holdfast.systems.media.worker_state import MediaWorkerState
from holdfast.systems.providers import ProviderRegistry, UsageAccount
from holdfast.systems.url_field import parse_url_field

THUMBNAIL_KIND: Final = "clips"
UNCOMMITTED_FILE_TTL: Final = timedelta(hours=1)
MAX_TRANSCRIPT_CHARS: Final = 4_000_000


class ClipEmbedding(msgspec.Struct, frozen=True):
    """The embedding of a clip as a whole, and its model."""

    vector: list[float]
    model: str


class ClipsWorkerState:
    """The providers of a worker, and what it does with a message of each queue."""

    def __init__(self, client: Client, providers: ProviderRegistry | None = None) -> None:
        self.client = client
        self.schema = client.settings.systems_schema
        self.recorder = ClipUsageRecorder(client)
        self.providers = providers or ProviderRegistry(client.settings, recorder=self.recorder)
        self._media = MediaWorkerState(client)
        self._scraper = ClipScraper(self._media, self.providers)
        self._speech_gate = ProviderGate()
        json_text = self.providers.json_text
        self._enricher: LocalEnricher | ModelEnricher = (
            LocalEnricher(self.providers.create_local_meter("text", LOCAL_ENRICHER))
            if json_text is None
            else ModelEnricher(json_text)
        )
        self.embedder = ClipEmbedder(client, self.providers.embeddings)
        self.scrape_runner = StageRunner(client, SCRAPE_QUEUE, self.scrape_clip)
        self.enrich_runner = StageRunner(client, ENRICH_QUEUE, self.enrich_clip)

    async def close(self) -> None:
        """Close all connections."""
        await self._media.close()
        await self.providers.close()

    def check_requirements(self) -> None:
        """Raise an error that names the fix if local embeddings are needed and not installed."""
        if self.client.settings.embeddings_url is None and importlib.util.find_spec("wordllama") is None:
            raise RefusedError(
                "Local embeddings are not installed.",
                fix="pip install 'holdfast[embeddings]', or set embeddings_url to an embeddings server.",
            )

    async def scrape_clip(self, clip: ClipState, message: Message[Any]) -> None:
        """Collect metadata and transcript, and send the clip to the next queue."""
        parse_url_field(clip.video_url, "video_url")
        steps, account = self._open_steps(clip)

        def create_transcriber() -> TranscriptionProvider:
            provider = create_transcription_provider(
                self.client.settings, recorder=self.recorder, account=account
            )
            return KeptTranscripts(provider, steps, self._speech_gate)

        with self._media.open_scratch_folder() as folder:
            async with open_progress(self.client, self.schema, clip.id) as progress:
                scraped = await self._scraper.scrape(
                    clip,
                    folder,
                    steps=steps,
                    account=account,
                    create_transcriber=create_transcriber,
                    report=progress.report,
                )
                thumbnail = await self._scraper.make_thumbnail(scraped.thumbnail_url, folder)
        values = build_scraped_values(clip, scraped)
        file = None
        if thumbnail is not None:
            file = await self.client.files.put(
                "thumbnail.jpg",
                thumbnail,
                "image/jpeg",
                owner=clip.owner,
                kind=THUMBNAIL_KIND,
                ttl=UNCOMMITTED_FILE_TTL,
                meta={"clip": clip.id},
            )
            path = f"{clip.owner}/clips/{clip.id}/{file.name}"
            values |= {"thumbnail": path, "thumbnail_file": str(file.id)}
        async with self.client.transaction() as connection:
            if await queries.store_values(connection, self.schema, clip.id, values):
                if file is not None:
                    await connection.execute("select holdfast.keep_artifact($1)", file.id)
                await queries.send_to_enrichment(connection, self.schema, clip.id)
            await message.done(connection)

    async def enrich_clip(self, clip: ClipState, message: Message[Any]) -> None:
        """Summarise and embed the transcript. A clip without one is done as it is."""
        values: dict[str, Any] = {}
        if clip.transcript:
            async with open_progress(self.client, self.schema, clip.id) as progress:
                values = await self._enrich_transcript(clip, clip.transcript, progress)
        async with self.client.transaction() as connection:
            if await queries.store_values(connection, self.schema, clip.id, values):
                await queries.set_done(connection, self.schema, clip.id)
            await message.done(connection)

    async def _enrich_transcript(
        self, clip: ClipState, transcript: str, progress: ClipProgress
    ) -> dict[str, Any]:
        steps, account = self._open_steps(clip)
        await progress.report(55, "Writing the summary")
        enrichment = await self._enricher.enrich(clip.title, transcript, steps=steps, account=account)
        await progress.report(80, "Preparing the search")
        embedding = await self._embed_clip(clip, enrichment, steps, account)
        passages = split_transcript(transcript, clip.segments)
        await self.embedder.embed_passages(clip.id, clip.user_id, passages, embedding.model, account)
        async with self.client.connection() as connection:
            column_dimension = await passage_queries.find_vector_column_dimension(connection, self.schema)
        fits = column_dimension in (None, len(embedding.vector))
        values: dict[str, Any] = {
            "title": clip.title or enrichment.title,
            "summary": enrichment.summary,
            "tags": enrichment.tags,
            "enriched_by": enrichment.by,
            "embedding": embedding.vector if fits else None,
            "embedding_model": embedding.model,
            "embedding_dimension": len(embedding.vector),
        }
        return values | ({"notice": enrichment.notice} if enrichment.notice else {})

    async def _embed_clip(
        self, clip: ClipState, enrichment: Enrichment, steps: ClipSteps, account: UsageAccount
    ) -> ClipEmbedding:
        text = build_clip_text(clip.title or enrichment.title, enrichment.summary, enrichment.tags)

        async def embed() -> ClipEmbedding:
            [vector], model = await self.embedder.embed_texts([text], account)
            return ClipEmbedding(vector, model)

        return await steps.run("embedding", ClipEmbedding, embed)

    def _open_steps(self, clip: ClipState) -> tuple[ClipSteps, UsageAccount]:
        account = UsageAccount(owner=clip.owner, source=f"{SOURCE_PREFIX}{clip.id}")
        return ClipSteps(self.client, self.schema, clip.id), account


def build_scraped_values(clip: ClipState, scraped: ScrapedClip) -> dict[str, Any]:
    """Return the columns that scraping fills. A title that the user has set stays."""
    has_times = any(end > 0 for _, end, _ in scraped.segments)
    return {
        "title": clip.title or scraped.title,
        "author": scraped.author,
        "description": scraped.description,
        "duration_s": scraped.duration_s,
        "language": scraped.language,
        "transcript": scraped.transcript[:MAX_TRANSCRIPT_CHARS] if scraped.transcript else None,
        "transcript_segments": scraped.segments if scraped.transcript and has_times else [],
        "transcript_by": scraped.transcript_by,
        "notice": scraped.notice,
    }


def build_clip_text(title: str | None, summary: str | None, tags: list[str]) -> str:
    """Return the text whose embedding stands for a clip."""
    return " ".join(part for part in (title, summary, ", ".join(tags)) if part)

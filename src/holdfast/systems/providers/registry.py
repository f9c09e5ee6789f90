"""One registry of providers for all systems. Providers are created at first use."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

from holdfast import Client, Settings
from holdfast.egress import EgressPolicy
from holdfast.systems.providers.config import ProviderConfig
from holdfast.systems.providers.http_scraping import HttpScrapingProvider
from holdfast.systems.providers.local_embeddings import LOCAL_EMBEDDINGS_MODEL, LocalEmbeddingProvider
from holdfast.systems.providers.local_speech import LocalSpeechProvider
from holdfast.systems.providers.local_text import LocalTextProvider
from holdfast.systems.providers.local_vision import LocalCaptionProvider
from holdfast.systems.providers.metering import CallMeter
from holdfast.systems.providers.openai_embeddings import OpenAIEmbeddingProvider
from holdfast.systems.providers.openai_speech import OpenAISpeechProvider
from holdfast.systems.providers.openai_text import OpenAITextProvider
from holdfast.systems.providers.openai_vision import OpenAICaptionProvider
from holdfast.systems.providers.prices import PriceTable
from holdfast.systems.providers.protocols import (
    CaptionProvider,
    EmbeddingProvider,
    JsonTextProvider,
    Provider,
    ScrapingProvider,
    SpeechProvider,
    TextProvider,
)
from holdfast.systems.providers.usage import DatabaseUsageRecorder, ProviderKind, UsageRecorder


class ProviderRegistry:
    """The providers of a process, chosen by the settings: remote if `<kind>_url` is set, else local.

    Calls are recorded by `recorder`. `overrides` replaces the providers of single kinds, for tests and for
    providers of your own.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        recorder: UsageRecorder | None = None,
        overrides: dict[ProviderKind, Provider] | None = None,
    ) -> None:
        self._settings = settings
        self._recorder = recorder
        self._prices = PriceTable.parse(settings.provider_prices)
        self._providers: dict[ProviderKind, Provider] = dict(overrides or {})

    @classmethod
    def for_client(
        cls, client: Client, overrides: dict[ProviderKind, Provider] | None = None
    ) -> ProviderRegistry:
        """Create the registry of a process that records the usage in the database of its client."""
        return cls(client.settings, recorder=DatabaseUsageRecorder(client), overrides=overrides)

    @property
    def text(self) -> TextProvider:
        """The language model, or fixed sentences without a model."""
        return cast("TextProvider", self._open("text", OpenAITextProvider, LocalTextProvider, "sentences"))

    @property
    def vision(self) -> CaptionProvider:
        """The model that describes images, or a sentence with what was measured."""
        provider = self._open("vision", OpenAICaptionProvider, LocalCaptionProvider, "measurements")
        return cast("CaptionProvider", provider)

    @property
    def speech(self) -> SpeechProvider:
        """The text-to-speech server, or eSpeak NG."""
        create_remote = partial(OpenAISpeechProvider, voice=self._settings.speech_voice)
        return cast("SpeechProvider", self._open("speech", create_remote, LocalSpeechProvider, "espeak-ng"))

    @property
    def embeddings(self) -> EmbeddingProvider:
        """The embeddings server, or the word vectors of WordLlama."""
        provider = self._open(
            "embeddings", OpenAIEmbeddingProvider, LocalEmbeddingProvider, LOCAL_EMBEDDINGS_MODEL
        )
        return cast("EmbeddingProvider", provider)

    @property
    def json_text(self) -> JsonTextProvider | None:
        """The language model for answers in JSON, or None without `text_url`."""
        return cast("JsonTextProvider", self.text) if self._settings.text_url else None

    @property
    def scraping(self) -> ScrapingProvider | None:
        """The scraping API, or None without `scraping_url`: then the system reads the page itself."""
        if self._settings.scraping_url is None and "scraping" not in self._providers:
            return None
        return cast("ScrapingProvider", self._open("scraping", HttpScrapingProvider, _refuse_local, "none"))

    def _open(
        self,
        kind: ProviderKind,
        create_remote: Callable[..., Provider],
        create_local: Callable[[CallMeter], Provider],
        local_model: str,
    ) -> Provider:
        """Return the provider of a kind. Create it at first use.

        `create_remote` gets the configuration, and the options `meter` and `policy`.
        """
        if kind not in self._providers:
            config = ProviderConfig.from_settings(self._settings, kind)
            if config is None:
                self._providers[kind] = create_local(self.create_local_meter(kind, local_model))
            else:
                meter = CallMeter(
                    kind, config.host, config.model, recorder=self._recorder, prices=self._prices
                )
                policy = EgressPolicy.from_settings(self._settings)
                self._providers[kind] = create_remote(config, meter=meter, policy=policy)
        return self._providers[kind]

    def create_local_meter(self, kind: ProviderKind, model: str) -> CallMeter:
        """Create the meter of a local provider. Its calls are recorded with a cost of 0."""
        return CallMeter.create_local(kind, model, self._recorder)

    async def close(self) -> None:
        """Close all providers that were used."""
        for provider in self._providers.values():
            await provider.close()
        self._providers.clear()


def _refuse_local(meter: CallMeter) -> Provider:
    raise NotImplementedError(f"There is no local provider of the kind {meter.kind}.")

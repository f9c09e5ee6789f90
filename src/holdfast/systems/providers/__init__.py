"""Providers of all systems: language model, vision, embeddings, speech, transcription and scraping.

    providers = ProviderRegistry.for_client(client)
    text = await providers.text.generate_text(instructions, subject, account=UsageAccount.of_task(ctx))

Each kind has a protocol (`protocols.py`), a client for OpenAI-compatible servers and a local default that
needs no network and no key. The settings `<kind>_url`, `<kind>_key`, `<kind>_model` and `<kind>_timeout`
choose the server. Requests pass the egress guard. Every call names the account that it is charged to, and is
recorded with its tokens, seconds, images and cost (`usage.py`). Failures are one of four errors
(`errors.py`).

Responses of providers are not trusted: their size is limited, they are validated, and they are used only as
text, numbers or audio.

To add a kind, or a client of a kind:

1. Add the settings `<kind>_url`, `<kind>_key`, `<kind>_model` and `<kind>_timeout` to `settings.py`.
2. Write the protocol in `protocols.py`. Its methods take `account: UsageAccount` and raise `ProviderError`.
3. Write the remote client as an `HttpProvider`: `async with self._http.open_call(account) as call`, one
   request (`call.post_json` or `call.post_form`), `call.decode`, `call.set_usage`. The rest is done there:
   limits, errors, accounting, metrics.
4. Write the local default. It measures its calls with `CallMeter.create_local`.
5. Add a property to `ProviderRegistry`.
6. Add the client to CLIENTS in `tests/systems/providers/test_provider_contract.py`: all clients pass the same
   tests.
"""

from holdfast.systems.providers.config import ProviderConfig
from holdfast.systems.providers.errors import (
    ProviderError,
    ProviderRateLimitedError,
    ProviderRefusedError,
    ProviderResponseError,
    ProviderUnavailableError,
    translate_provider_errors,
)
from holdfast.systems.providers.metering import CallMeter
from holdfast.systems.providers.protocols import (
    CaptionProvider,
    EmbeddingProvider,
    GeneratedText,
    ImageMeasurements,
    JsonTextProvider,
    Provider,
    ScrapedMedia,
    ScrapingProvider,
    SpeechAudio,
    SpeechProvider,
    StreamingTextProvider,
    TextEmbeddings,
    TextProvider,
)
from holdfast.systems.providers.registry import ProviderRegistry
from holdfast.systems.providers.usage import (
    CallRecord,
    DatabaseUsageRecorder,
    ProviderKind,
    ProviderUsage,
    UsageAccount,
    UsageRecorder,
)

__all__ = [
    "CallMeter",
    "CallRecord",
    "CaptionProvider",
    "DatabaseUsageRecorder",
    "EmbeddingProvider",
    "GeneratedText",
    "ImageMeasurements",
    "JsonTextProvider",
    "Provider",
    "ProviderConfig",
    "ProviderError",
    "ProviderKind",
    "ProviderRateLimitedError",
    "ProviderRefusedError",
    "ProviderRegistry",
    "ProviderResponseError",
    "ProviderUnavailableError",
    "ProviderUsage",
    "ScrapedMedia",
    "ScrapingProvider",
    "SpeechAudio",
    "SpeechProvider",
    "StreamingTextProvider",
    "TextEmbeddings",
    "TextProvider",
    "UsageAccount",
    "UsageRecorder",
    "translate_provider_errors",
]

"""Caption provider without a model: it states what was measured in an image, and nothing else."""

from __future__ import annotations

from holdfast.systems.providers.metering import CallMeter
from holdfast.systems.providers.protocols import GeneratedText, ImageMeasurements
from holdfast.systems.providers.usage import ProviderUsage, UsageAccount

MAX_QUOTED_CHARS = 120
SQUARE_TOLERANCE = 0.05


class LocalCaptionProvider:
    """A `CaptionProvider` that needs no network and no key. It does not recognise what an image shows."""

    def __init__(self, meter: CallMeter | None = None) -> None:
        self._meter = meter or CallMeter.create_local("vision", "measurements")

    @property
    def limit_key(self) -> str:
        return "vision:local"

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    async def describe_image(
        self, content: bytes, content_type: str, measurements: ImageMeasurements, *, account: UsageAccount
    ) -> GeneratedText:
        async with self._meter.measure_call(account) as call:
            call.usage = ProviderUsage(images=1)
            return GeneratedText(compose_caption(measurements), "measurements")


def compose_caption(measurements: ImageMeasurements) -> str:
    """Return a sentence with the shape, the size, the main colours and the text of an image."""
    width, height = measurements.width, measurements.height
    ratio = width / max(height, 1)
    shape = "Square" if abs(ratio - 1) <= SQUARE_TOLERANCE else "Landscape" if ratio > 1 else "Portrait"
    sentence = f"{shape} image of {width} x {height} pixels"
    if measurements.colors:
        sentence += f", mostly {' and '.join(measurements.colors)}"
    text = " ".join(measurements.text.split())
    if text:
        quoted = text if len(text) <= MAX_QUOTED_CHARS else f"{text[:MAX_QUOTED_CHARS].rstrip()}..."
        sentence += f", with the text \N{LEFT DOUBLE QUOTATION MARK}{quoted}\N{RIGHT DOUBLE QUOTATION MARK}"
    return f"{sentence}."

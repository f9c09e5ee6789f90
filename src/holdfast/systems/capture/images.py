"""Fetch an image, check it by decoding it, and describe it."""

from __future__ import annotations

import asyncio
import logging

from holdfast.egress import EgressClient, EgressError
from holdfast.systems.capture.decoder_operations import DecodedImage
from holdfast.systems.capture.errors import CaptureError, build_capture_error, build_status_error
from holdfast.systems.capture.media_decoder import MediaDecoder
from holdfast.systems.capture.page_facts import ImageFacts
from holdfast.systems.providers import (
    CaptionProvider,
    ImageMeasurements,
    ProviderRefusedError,
    UsageAccount,
)

LOGGER = logging.getLogger(__name__)
MAX_IMAGE_BYTES = 30 * 1024 * 1024
IMAGE_TIMEOUT_S = 30.0
IMAGE_ACCEPT = "image/webp,image/png,image/jpeg,image/gif,image/*;q=0.5"


async def fetch_image(
    url: str,
    *,
    egress: EgressClient,
    decoder: MediaDecoder,
    captions: CaptionProvider | None = None,
    account: UsageAccount | None = None,
) -> ImageFacts:
    """Fetch an image and return it as WebP, without metadata, with its size, blurhash, text and caption.

    `ocr_text` is None if the text cannot be read, and empty if there is none. Raise CaptureError if the image
    cannot be fetched, is no image, or is larger than allowed (bytes or pixels).
    """
    content = await fetch_image_bytes(url, egress, MAX_IMAGE_BYTES)
    return await describe_image(content, decoder=decoder, captions=captions, account=account)


async def describe_image(
    content: bytes,
    *,
    decoder: MediaDecoder,
    captions: CaptionProvider | None = None,
    account: UsageAccount | None = None,
) -> ImageFacts:
    """Decode an image that is already here. The caption is charged to `account`. See `fetch_image`."""
    image = await decoder.decode_image(content)
    ocr_text: str | None
    try:
        ocr_text = await decoder.read_image_text(image.content)
    except CaptureError:
        ocr_text = None  # an image that can be shown is worth having without its text
    caption = None
    if captions is not None:
        caption = await _describe_in_words(image, ocr_text or "", captions, account or UsageAccount())
    return ImageFacts(
        content=image.content,
        content_type=image.content_type,
        width=image.width,
        height=image.height,
        blurhash=image.blurhash,
        ocr_text=ocr_text,
        caption=caption,
    )


async def _describe_in_words(
    image: DecodedImage, text: str, captions: CaptionProvider, account: UsageAccount
) -> str | None:
    """Return the caption, or None if the provider refuses the image. Other failures are worth a retry."""
    measurements = ImageMeasurements(width=image.width, height=image.height, colors=image.colors, text=text)
    try:
        description = await captions.describe_image(
            image.content, image.content_type, measurements, account=account
        )
    except ProviderRefusedError as error:
        LOGGER.warning("image.caption_refused error=%s", error.message)
        return None
    return description.text


async def fetch_image_bytes(url: str, egress: EgressClient, max_bytes: int) -> bytes:
    """Fetch the file of an image. Only its content tells whether it is one: servers state wrong types."""
    body = bytearray()
    try:
        async with (
            asyncio.timeout(IMAGE_TIMEOUT_S),
            egress.stream("GET", url, headers={"Accept": IMAGE_ACCEPT}) as response,
        ):
            if response.status >= 400:
                raise build_status_error(response.status)
            if response.content_type.startswith(("text/", "application/json", "video/", "audio/")):
                raise CaptureError("The URL is not an image.", retry=False)
            async for chunk in response.iterate_bytes():
                body += chunk
                if len(body) > max_bytes:
                    raise CaptureError(f"The image is larger than {max_bytes:,} bytes.", retry=False)
    except EgressError as error:
        raise build_capture_error(error) from error
    except TimeoutError:
        raise CaptureError("The server did not send the image in time.", retry=True) from None
    return bytes(body)

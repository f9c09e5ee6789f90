"""Images, icons and captions: real decoding, real OCR, and files that attack the decoder."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
import signal
import struct
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from hard_pages import make_pixel_bomb
from page_site import PageSite, make_image, open_picture
from provider_server import (
    LOOPBACK_POLICY,
    ProviderServer,
    make_chat_response,
    make_config,
    run_provider_server,
)

from holdfast.egress import EgressClient
from holdfast.settings import Secret, Settings
from holdfast.systems.capture import (
    CaptureError,
    MediaDecoder,
    PageFacts,
    describe_image,
    fetch_image,
    find_favicon,
)
from holdfast.systems.capture.images import MAX_IMAGE_BYTES
from holdfast.systems.providers import ImageMeasurements, ProviderRegistry, ProviderUnavailableError
from holdfast.systems.providers.local_vision import LocalCaptionProvider, compose_caption
from holdfast.systems.providers.openai_vision import OpenAICaptionProvider


async def test_an_image_is_decoded_described_and_read(
    site: PageSite, egress: EgressClient, decoder: MediaDecoder
) -> None:
    content = make_image(1200, 630, (20, 40, 160), "JPEG", text="Holdfast")
    facts = await fetch_image(
        site.add("/og", content, "image/jpeg"),
        egress=egress,
        decoder=decoder,
        captions=LocalCaptionProvider(),
    )
    picture = open_picture(facts.content)
    assert (picture.format, facts.content_type) == ("WEBP", "image/webp")
    assert picture.size == (facts.width, facts.height) == (1200, 630)
    assert len(facts.blurhash) == 28
    assert facts.ocr_text is not None
    assert facts.ocr_text == "Holdfast"
    assert facts.caption == ("Landscape image of 1200 x 630 pixels, mostly blue, with the text “Holdfast”.")


async def test_metadata_is_removed_and_large_images_are_scaled(decoder: MediaDecoder) -> None:
    picture = open_picture(make_image(5000, 1000, file_format="JPEG"))
    exif = picture.getexif()
    exif[0x010E] = "secret place"
    exif[0x0112] = 6  # rotated by 90 degrees
    output = io.BytesIO()
    picture.save(output, "JPEG", exif=exif)
    image = await decoder.decode_image(output.getvalue())
    assert (image.width, image.height) == (410, 2048)
    assert b"secret place" not in image.content
    assert not open_picture(image.content).getexif()


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "ICO", "AVIF"])
async def test_formats_of_the_web_are_decoded(decoder: MediaDecoder, file_format: str) -> None:
    from PIL import features  # noqa: PLC0415

    if file_format == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    image = await decoder.decode_image(make_image(64, 64, file_format=file_format))
    assert (image.width, image.height, image.colors) == (64, 64, ("blue",))


HOSTILE_FILES = {
    "pixel bomb": (make_pixel_bomb(60_000, 60_000), "million pixels"),
    "claimed size": (make_pixel_bomb(8, 8).replace(struct.pack(">II", 8, 8), b"\x7f\xff\xff\xff" * 2),
                     "million pixels|damaged|supported"),
    "cut": (make_image()[:200], "damaged"),
    "text": (b"<html>no image</html>", "supported format"),
    "empty": (b"", "supported format"),
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>", "supported format"),
    "eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "supported format"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_FILES)
async def test_hostile_images_are_refused(decoder: MediaDecoder, name: str) -> None:
    content, message = HOSTILE_FILES[name]
    with pytest.raises(CaptureError, match=message) as caught:
        await decoder.decode_image(content)
    assert not caught.value.retry
    assert (await decoder.decode_image(make_image(10, 10))).width == 10


async def test_responses_that_are_no_images_are_refused(
    site: PageSite, egress: EgressClient, decoder: MediaDecoder
) -> None:
    bomb = gzip.compress(bytes(60 * 1024 * 1024), 9)
    cases = {
        site.add("/page", "<h1>Page</h1>"): "not an image",
        site.add("/bomb", bomb, "image/png", Content_Encoding="gzip"): "larger|decompress|expand",
        site.add("/large", bytes(MAX_IMAGE_BYTES + 1), "image/png"): "larger than",
        site.server.url + "/missing": "404",
    }
    for url, message in cases.items():
        with pytest.raises(CaptureError, match=message) as caught:
            await fetch_image(url, egress=egress, decoder=decoder)
        assert not caught.value.retry


async def test_private_addresses_are_refused(egress: EgressClient, decoder: MediaDecoder) -> None:
    with pytest.raises(CaptureError, match="public internet") as caught:
        await fetch_image("http://127.0.0.1:1/x.png", egress=egress, decoder=decoder)
    assert not caught.value.retry


async def test_a_decoder_that_crashes_or_hangs_is_replaced(decoder: MediaDecoder) -> None:
    await decoder.decode_image(make_image(10, 10))
    (crashed,) = decoder.pids
    os.kill(crashed, signal.SIGKILL)
    with pytest.raises(CaptureError):
        await decoder.decode_image(make_image(10, 10))
    assert (await decoder.decode_image(make_image(10, 10))).width == 10

    async with MediaDecoder(decode_timeout_s=2) as impatient:
        await impatient.decode_image(make_image(10, 10))
        (frozen,) = impatient.pids
        os.kill(frozen, signal.SIGSTOP)
        with pytest.raises(CaptureError, match="too long"):
            await impatient.decode_image(make_image(10, 10))
        assert not Path(f"/proc/{frozen}").exists()


async def test_a_cancelled_task_does_not_disturb_the_next(decoder: MediaDecoder) -> None:
    await decoder.decode_image(make_image(10, 10))
    task = asyncio.create_task(decoder.decode_image(make_image(4000, 4000)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await decoder.decode_image(make_image(30, 20))).width == 30


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up rights")
async def test_decoders_have_no_rights_and_no_secrets(
    decoder: MediaDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SERVICE_KEY", "very secret")
    await decoder.decode_image(make_image(10, 10))
    (pid,) = decoder.pids
    status = Path(f"/proc/{pid}/status").read_text()
    assert "\nUid:\t0\t" not in status
    assert "\nNoNewPrivs:\t1\n" in status
    assert "very secret" not in Path(f"/proc/{pid}/environ").read_text()


async def test_the_best_icon_is_found(site: PageSite, egress: EgressClient, decoder: MediaDecoder) -> None:
    broken = site.add("/broken.png", b"no image", "image/png")
    drawing = site.add("/icon.svg", "<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml")
    large = site.add("/large.png", make_image(512, 512, (0, 200, 0)), "image/png")
    usual = site.add("/favicon.ico", make_image(32, 32, (200, 0, 0), "ICO"), "image/x-icon")
    page = PageFacts(final_url=site.server.url, favicon_urls=(broken, large, drawing, usual))
    icon = await find_favicon(page, egress=egress, decoder=decoder)
    assert icon is not None
    picture = open_picture(icon[0])
    assert (icon[1], picture.format, picture.size) == ("image/png", "PNG", (128, 128))
    assert picture.convert("RGB").getpixel((5, 5)) == (0, 200, 0)

    manifest = {"icons": [{"src": "large.png", "sizes": "512x512"}, {"src": 7}, "x"]}
    page = PageFacts(
        final_url=site.server.url,
        favicon_urls=(usual,),
        manifest_url=site.add("/site.webmanifest", json.dumps(manifest), "application/manifest+json"),
    )
    icon = await find_favicon(page, egress=egress, decoder=decoder)
    assert icon is not None
    assert open_picture(icon[0]).size == (128, 128)

    page = PageFacts(
        final_url=site.server.url, favicon_urls=(usual,), manifest_url=site.server.url + "/missing"
    )
    icon = await find_favicon(page, egress=egress, decoder=decoder)
    assert icon is not None
    assert open_picture(icon[0]).size == (32, 32)
    assert await find_favicon(drawing, egress=egress, decoder=decoder) is None


@pytest.fixture
async def vision_server() -> AsyncGenerator[ProviderServer]:
    async with run_provider_server() as server:
        yield server


async def test_captions_come_from_an_openai_compatible_server(
    vision_server: ProviderServer, decoder: MediaDecoder
) -> None:
    vision_server.respond = lambda *_: make_chat_response("  A blue\nrectangle. ")
    settings = Settings(
        vision_url=vision_server.url,
        vision_key=Secret("sk-test"),
        vision_model="eye",
        egress_allow="127.0.0.1",
    )
    providers = ProviderRegistry(settings)
    try:
        facts = await describe_image(make_image(100, 100), decoder=decoder, captions=providers.vision)
    finally:
        await providers.close()
    assert facts.caption == "A blue rectangle."
    path, headers, body = vision_server.requests[0]
    assert (path, headers["authorization"], body["model"]) == (
        "/v1/chat/completions",
        "Bearer sk-test",
        "eye",
    )
    assert body["messages"][1]["content"][0]["image_url"]["url"].startswith("data:image/webp;base64,")


async def test_an_image_that_the_vision_server_refuses_has_no_caption(
    vision_server: ProviderServer, decoder: MediaDecoder
) -> None:
    vision_server.respond = lambda *_: (400, {}, b"the content policy")
    provider = OpenAICaptionProvider(make_config(vision_server, "vision"), policy=LOOPBACK_POLICY)
    try:
        facts = await describe_image(make_image(100, 100), decoder=decoder, captions=provider)
        assert (facts.caption, facts.width) == (None, 100)
        vision_server.respond = lambda *_: (500, {}, b"")
        with pytest.raises(ProviderUnavailableError):
            await describe_image(make_image(100, 100), decoder=decoder, captions=provider)
    finally:
        await provider.close()


def test_the_local_caption_states_only_measurements() -> None:
    assert compose_caption(ImageMeasurements(width=100, height=102)) == "Square image of 100 x 102 pixels."
    caption = compose_caption(
        ImageMeasurements(width=300, height=900, colors=("dark green", "white"), text="a " * 200)
    )
    assert caption.startswith(
        "Portrait image of 300 x 900 pixels, mostly dark green and white, with the text “a a"
    )
    assert len(caption) < 250
    assert isinstance(ProviderRegistry(Settings()).vision, LocalCaptionProvider)

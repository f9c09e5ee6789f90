"""Decode images and PDFs, and read the text in images. These functions run in a decoder process only.

Everything here reads files that strangers made, with libraries in C. The process has limits on memory and
time, no rights and no secrets. Sizes are checked before pixels are decoded.
"""

from __future__ import annotations

import colorsys
import io
import warnings
from functools import cache
from typing import Any

import msgspec

from holdfast.systems.capture.libraries import load_library

# Formats of the web. Others, such as EPS and WMF, start programs or have had many holes.
IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "ICO", "AVIF")
MAX_PIXELS = 50_000_000
MAX_PDF_PIXELS = 8_000_000
MAX_PDF_TEXT_PAGES = 20
MAX_PDF_TEXT_CHARS = 200_000
BLURHASH_SIDE = 32
COLOR_SIDE = 64
MAX_OCR_SIDE = 1600
MIN_OCR_SCORE = 0.6
MAX_OCR_CHARS = 20_000
WEBP_QUALITY = 82


class DecodeRefusedError(Exception):
    """The file is not valid, or larger than allowed. The message may be shown to users."""


class DecodedImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image that was decoded and encoded again. `colors` are the names of its main colours."""

    content: bytes
    content_type: str
    width: int
    height: int
    blurhash: str
    colors: tuple[str, ...]


class RenderedPage(msgspec.Struct, frozen=True, kw_only=True):
    """The first page of a PDF as an image, with the title and the text of the document."""

    content: bytes
    content_type: str
    width: int
    height: int
    title: str | None
    text: str
    page_count: int


def decode_image(content: bytes, max_side: int, output_format: str) -> DecodedImage:
    """Decode an image and encode it again, without metadata and at most `max_side` pixels wide and high."""
    image = _open_image(content)
    image.thumbnail((max_side, max_side))
    target = "RGBA" if _has_alpha(image) else "RGB"
    image = image.convert(target)
    output = io.BytesIO()
    image.save(output, output_format, **({"quality": WEBP_QUALITY} if output_format == "WEBP" else {}))
    return DecodedImage(
        content=output.getvalue(),
        content_type=f"image/{output_format.lower()}",
        width=image.width,
        height=image.height,
        blurhash=_compute_blurhash(image),
        colors=_find_main_colors(image),
    )


def render_pdf_page(content: bytes, width: int) -> RenderedPage:
    """Render the first page of a PDF, `width` pixels wide."""
    pypdfium2 = load_library("pypdfium2")
    try:
        document = pypdfium2.PdfDocument(content)
        page = document[0]
        page_width, page_height = page.get_size()
        if page_width <= 0 or page_height <= 0:
            raise DecodeRefusedError("The first page of the PDF is empty.")
        scale = min(width / page_width, (MAX_PDF_PIXELS / (page_width * page_height)) ** 0.5)
        if min(page_width, page_height) * scale < 1:
            raise DecodeRefusedError("The first page of the PDF has no usable size.")
        image = page.render(scale=scale).to_pil().convert("RGB")
        title = document.get_metadata_dict().get("Title") or None
        text = _read_pdf_text(document)
        page_count = len(document)
    except pypdfium2.PdfiumError as error:
        is_locked = "password" in str(error).lower()
        reason = "The PDF is protected by a password." if is_locked else "The file is not a valid PDF."
        raise DecodeRefusedError(reason) from None
    output = io.BytesIO()
    image.save(output, "WEBP", quality=WEBP_QUALITY)
    return RenderedPage(
        content=output.getvalue(),
        content_type="image/webp",
        width=image.width,
        height=image.height,
        title=title,
        text=text,
        page_count=page_count,
    )


def read_image_text(content: bytes) -> str:
    """Read the text in an image, one line for each line of text."""
    np = load_library("numpy")
    pillow = load_library("PIL.Image")
    image = _open_image(content)
    image.thumbnail((MAX_OCR_SIDE, MAX_OCR_SIDE))
    rgba = image.convert("RGBA")
    # Text on a transparent ground is read on white, as a page shows it.
    ground = pillow.new("RGBA", rgba.size, (255, 255, 255, 255))
    pixels = np.asarray(pillow.alpha_composite(ground, rgba).convert("RGB"))[:, :, ::-1]
    result: list[Any] = load_text_reader()(np.ascontiguousarray(pixels))[0] or []
    lines = [str(line[1]).strip() for line in result if float(line[2]) >= MIN_OCR_SCORE]
    return "\n".join(line for line in lines if line)[:MAX_OCR_CHARS]


@cache
def load_text_reader() -> Any:
    """Load the weights of the text reader, which are inside its package."""
    return load_library("rapidocr_onnxruntime").RapidOCR(intra_op_num_threads=1)


def _open_image(content: bytes) -> Any:
    pillow = load_library("PIL.Image")
    pillow.MAX_IMAGE_PIXELS = MAX_PIXELS
    warnings.simplefilter("error", pillow.DecompressionBombWarning)
    try:
        image = pillow.open(
            io.BytesIO(content), formats=[name for name in IMAGE_FORMATS if name in pillow.OPEN]
        )
        if image.width * image.height > MAX_PIXELS:
            raise DecodeRefusedError(f"The image has more than {MAX_PIXELS // 1_000_000} million pixels.")
        image.load()
        return load_library("PIL.ImageOps").exif_transpose(image)
    except (pillow.DecompressionBombWarning, pillow.DecompressionBombError):
        raise DecodeRefusedError(
            f"The image has more than {MAX_PIXELS // 1_000_000} million pixels."
        ) from None
    except pillow.UnidentifiedImageError:
        raise DecodeRefusedError("The file is not an image of a supported format.") from None
    except (
        OSError,
        ValueError,
        SyntaxError,
        EOFError,
        IndexError,
        KeyError,
        TypeError,
        OverflowError,
    ) as error:
        raise DecodeRefusedError("The image is damaged.") from error


def _has_alpha(image: Any) -> bool:
    return image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info


def _compute_blurhash(image: Any) -> str:
    small = _flatten(image, BLURHASH_SIDE)
    pixels = list(small.getdata())
    rows = [pixels[start : start + small.width] for start in range(0, len(pixels), small.width)]
    # A wide image has more parts across, a high one more parts down.
    components = (4, 3) if small.width >= small.height else (3, 4)
    return str(load_library("blurhash").encode(rows, *components))


def _flatten(image: Any, side: int) -> Any:
    pillow = load_library("PIL.Image")
    small = image.copy()
    small.thumbnail((side, side))
    if small.mode == "RGBA":
        ground = pillow.new("RGBA", small.size, (255, 255, 255, 255))
        small = pillow.alpha_composite(ground, small)
    return small.convert("RGB")


def _find_main_colors(image: Any) -> tuple[str, ...]:
    """Return the names of the colours that cover at least a tenth of an image, most frequent first."""
    pixels = list(_flatten(image, COLOR_SIDE).getdata())
    counts: dict[str, int] = {}
    for pixel in pixels:
        name = name_color(*pixel)
        counts[name] = counts.get(name, 0) + 1
    names = sorted(counts, key=lambda name: -counts[name])
    return tuple(name for name in names if counts[name] * 10 >= len(pixels))[:3]


def name_color(red: int, green: int, blue: int) -> str:
    """Return the name of a colour, one of fourteen."""
    hue, saturation, value = colorsys.rgb_to_hsv(red / 255, green / 255, blue / 255)
    if value < 0.2:
        return "black"
    if saturation < 0.15:
        return "white" if value > 0.9 else "light grey" if value > 0.6 else "grey"
    hues = ((15, "red"), (42, "orange"), (68, "yellow"), (165, "green"), (200, "turquoise"), (255, "blue"),
            (290, "purple"), (335, "pink"), (361, "red"))  # fmt: skip
    name = next(name for limit, name in hues if hue * 360 < limit)
    return "brown" if name == "orange" and value < 0.6 else f"dark {name}" if value < 0.45 else name


def _read_pdf_text(document: Any) -> str:
    texts: list[str] = []
    for index in range(min(len(document), MAX_PDF_TEXT_PAGES)):
        texts.append(document[index].get_textpage().get_text_range())
        if sum(map(len, texts)) > MAX_PDF_TEXT_CHARS:
            break
    return "\n".join(texts).encode("utf-8", "replace").decode()[:MAX_PDF_TEXT_CHARS]

"""SVG elements with every value escaped."""

from __future__ import annotations

from functools import cache

from markupsafe import Markup, escape


def render_svg_element(name: str, *children: str, **attributes: str | float | bool) -> Markup:
    """Render an SVG element, such as `render_svg_element("rect", class_="danger", x=1.25)`.

    In attribute names, a trailing underscore is dropped and other underscores become hyphens. An attribute
    whose value is True has no value. Text children are escaped.
    """
    # Plain strings: a page has thousands of elements, and formatting of Markup takes ten times as long.
    tag = _format_name(name)
    parts = [f"<{tag}"]
    for key, value in attributes.items():
        parts.append(f" {_format_name(key)}")
        if value is not True:
            parts.append(f'="{_format_attribute_value(value)}"')
    parts += [">", *(escape(child) for child in children), f"</{tag}>"]
    return Markup("".join(parts))  # noqa: S704  (names are in this package's code, the rest is escaped)


@cache
def _format_name(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _format_attribute_value(value: str | float) -> str:
    return escape(value) if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")

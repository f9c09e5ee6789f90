"""SVG elements with every value escaped."""

from __future__ import annotations

from markupsafe import Markup, escape


def render_svg_element(name: str, *children: str, **attributes: str | float | bool) -> Markup:
    """Render an SVG element, such as `render_svg_element("rect", class_="danger", x=1.25)`.

    In attribute names, a trailing underscore is dropped and other underscores become hyphens. An attribute
    whose value is True has no value. Text children are escaped.
    """
    rendered = Markup("").join(
        Markup(' {}="{}"').format(_format_attribute_name(key), _format_attribute_value(value))
        if value is not True
        else Markup(" {}").format(_format_attribute_name(key))
        for key, value in attributes.items()
    )
    return Markup("<{0}{1}>{2}</{0}>").format(
        _format_attribute_name(name), rendered, Markup("").join(escape(child) for child in children)
    )


def _format_attribute_name(name: str) -> Markup:
    return Markup(name.rstrip("_").replace("_", "-"))  # noqa: S704  (names are in this package's code)


def _format_attribute_value(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")

"""Elements of SVG, with every value escaped."""

from __future__ import annotations

from markupsafe import Markup, escape


def tag(name: str, *inner: str, **attributes: str | float | bool) -> Markup:
    """`tag("rect", tag("title", "x"), class_="bad", x=1.25)`; a trailing or inner _ becomes nothing or -."""
    written = Markup("").join(
        Markup(' {}="{}"').format(_attribute(key), _value(value))
        if value is not True
        else Markup(" {}").format(_attribute(key))
        for key, value in attributes.items()
    )
    return Markup("<{0}{1}>{2}</{0}>").format(
        _attribute(name),
        written,
        Markup("").join(escape(one) for one in inner),
    )


def _attribute(name: str) -> Markup:
    return Markup(name.rstrip("_").replace("_", "-"))  # noqa: S704  (names are in our own code)


def _value(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")

"""Bind the arguments of a call to the names of the parameters of a task."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any


class ArgumentBinder:
    """Binds arguments as `inspect.Signature.bind` does, several times faster.

    Parameters of tasks have names: there are no `*args`, `**kwargs` or positional-only parameters.
    """

    def __init__(self, signature: inspect.Signature) -> None:
        parameters = signature.parameters.values()
        self._signature = signature
        self._names = tuple(signature.parameters)
        self._positional_names = tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
        self._required_names = frozenset(p.name for p in parameters if p.default is p.empty)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by name, in the order of the parameters. TypeError says what does not fit."""
        bound: dict[str, Any] = dict(zip(self._positional_names, args, strict=False))
        if kwargs:
            unordered: dict[str, Any] = {**bound, **kwargs}
            bound = {name: unordered[name] for name in self._names if name in unordered}
        if len(bound) == len(args) + len(kwargs) and self._required_names <= bound.keys():
            return bound
        return self._signature.bind(*args, **kwargs).arguments  # raises, with the reason

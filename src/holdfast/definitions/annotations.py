"""Resolve the annotations of a task's function: the types that its arguments are converted to.

An annotation that cannot be resolved would switch the conversion off: the function would get a string where
it declares a date. So it is an error, with the line to change. The module may define a name below the
function, so a name that is missing is reported when the task is first used; a name that the module imports
for type checkers only is reported when the function is decorated.
"""

from __future__ import annotations

import ast
import inspect
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from holdfast.errors import InvalidError


def resolve_annotations(
    function: Callable[..., Any],
    *,
    skip: str | None = None,
    local_names: Mapping[str, Any] | None = None,
    include_extras: bool = False,
) -> dict[str, Any]:
    """Return the types of the parameters and of the result, except those of the parameter `skip`."""
    try:
        annotations = {**getattr(function, "__annotations__", {})}
        annotations.pop(skip or "", None)
        holder = SimpleNamespace(__annotations__=annotations)
        names = getattr(inspect.unwrap(function), "__globals__", {})
        return typing.get_type_hints(holder, names, {**(local_names or {})}, include_extras=include_extras)
    except NameError as error:
        raise _build_missing_name_error(function, error.name or str(error)) from None
    except (TypeError, AttributeError, SyntaxError) as error:
        raise InvalidError(
            f"An annotation of task {_get_name(function)!r} cannot be evaluated: {error}.",
            fix="Correct the annotation, or use Any.",
            field="function",
        ) from None


def is_imported_for_type_checking(function: Callable[..., Any], name: str) -> bool:
    """Return whether the module of the function imports a name in `if TYPE_CHECKING:` only."""
    module = sys.modules.get(function.__module__)
    path = getattr(module, "__file__", None)
    if path is None:
        return False
    try:
        tree = ast.parse(Path(path).read_text("utf-8"))
    except (OSError, SyntaxError, ValueError):
        return False
    return name in set(_iterate_type_checking_imports(tree))


def get_caller_locals() -> dict[str, Any]:
    """Return the local names of the function that declares a task; none at the level of a module."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("holdfast.definitions."):
        frame = frame.f_back
    return {} if frame is None or frame.f_locals is frame.f_globals else dict(frame.f_locals)


def _build_missing_name_error(function: Callable[..., Any], name: str) -> InvalidError:
    if is_imported_for_type_checking(function, name):
        fix = f"Move the import of {name} out of `if TYPE_CHECKING:`."
    else:
        fix = f"Import {name} at the top of the module, or correct the annotation."
    return InvalidError(
        f"The annotations of task {_get_name(function)!r} use {name}, which does not exist at run time, so "
        "arguments cannot be converted.",
        fix=fix,
        field=name,
    )


def _iterate_type_checking_imports(tree: ast.Module) -> Iterator[str]:
    for block in ast.walk(tree):
        if isinstance(block, ast.If) and ast.unparse(block.test).endswith("TYPE_CHECKING"):
            for node in block.body:
                if isinstance(node, (ast.Import, ast.ImportFrom)):
                    yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)


def _get_name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", repr(function))

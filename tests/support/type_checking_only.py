"""A module with a task whose annotation is imported for type checkers only. Importing it is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast import task

if TYPE_CHECKING:
    from datetime import date


@task
def remind(day: date) -> None: ...

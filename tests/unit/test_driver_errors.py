"""Errors of the driver become Holdfast errors, without passwords."""

from __future__ import annotations

import asyncpg
import pytest

from holdfast import errors
from holdfast.engine.connection import is_data_error, translate_driver_errors, translate_error
from holdfast.errors import DatabaseUnavailableError
from holdfast.settings import Secret


def raise_in_driver(error: Exception) -> None:
    """Raise an error in a frame of the driver, as it happens when a connection breaks."""
    exec("raise error", {"__name__": "asyncpg.connection", "error": error})


@pytest.mark.parametrize(
    "driver_error",
    [
        asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress"),
        asyncpg.InterfaceError("connection is closed"),
        ConnectionResetError("Connection reset by peer"),
        TimeoutError(),
    ],
)
def test_a_closed_connection_raises_database_unavailable_error(driver_error: Exception) -> None:
    with (
        pytest.raises(DatabaseUnavailableError) as caught,
        translate_driver_errors(Secret("postgresql://me:secret@127.0.0.1/app")),
    ):
        raise_in_driver(driver_error)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("sqlstate", "error_class", "of_data"),
    [
        ("22P05", errors.InvalidError, True),  # a character that PostgreSQL cannot store
        ("22P02", errors.InvalidError, True),
        ("23503", errors.DatabaseRefusedError, True),
        ("23505", errors.ConflictError, True),
        ("54000", errors.TooLargeError, True),
        ("P0001", errors.DatabaseRefusedError, True),
        ("P0002", errors.DatabaseRefusedError, True),
        ("HF004", errors.InvalidError, True),
        ("42501", errors.DatabasePermissionError, False),
        ("42P01", errors.DatabaseError, False),  # a schema that just changes
        ("40001", errors.DatabaseError, False),
        ("40P01", errors.DatabaseError, False),
        ("55P03", errors.DatabaseError, False),
        ("57014", errors.DatabaseError, False),
        ("53100", errors.DatabaseFullError, False),
        ("57P01", errors.DatabaseUnavailableError, False),
        ("57P03", errors.DatabaseUnavailableError, False),
        ("08006", errors.DatabaseUnavailableError, False),
        ("28P01", errors.DatabaseLoginError, False),
        ("3D000", errors.DatabaseLoginError, False),
    ],
)
def test_errors_of_data_rights_and_connection_are_told_apart(
    sqlstate: str, error_class: type[errors.HoldfastError], of_data: bool
) -> None:
    error = type("DriverError", (asyncpg.PostgresError,), {"__module__": "tests"})("text")
    type(error).sqlstate = sqlstate
    translated = translate_error(error, Secret("postgresql://me:secret@127.0.0.1/app"))
    assert type(translated) is error_class
    assert is_data_error(translated) is of_data

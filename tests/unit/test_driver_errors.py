"""Errors of the driver become Holdfast errors, without passwords."""

from __future__ import annotations

import asyncpg
import pytest

from holdfast.engine.connection import translate_driver_errors
from holdfast.errors import DatabaseUnavailableError
from holdfast.settings import Secret


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
        raise driver_error
    assert "secret" not in str(caught.value)

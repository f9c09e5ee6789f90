"""Open the socket of the API in `holdfast dev` and `demo`, before the process of the API starts.

The process inherits the socket. So the port is taken from the moment at which it is chosen, two commands that
start at once get different ports, and connections wait while the API restarts.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final

from holdfast.cli.api import open_server_socket
from holdfast.errors import HoldfastError
from holdfast.settings import Settings

MAX_PORTS_TO_TRY: Final = 50
DEFAULT_PORT: Final = Settings().api_port


def open_api_socket(
    settings: Settings, requested_port: int | None, print_line: Callable[[str], None]
) -> socket.socket:
    """Open the socket. If the default port is in use, choose the next free port and print that.

    A port that the user chose, by an option or a setting, is not replaced: raise `HoldfastError`.
    """
    port = settings.api_port if requested_port is None else requested_port
    try:
        return open_server_socket(settings.api_host, port)
    except HoldfastError:
        if port != DEFAULT_PORT or requested_port is not None:
            raise
    listener = _open_next_free_port(settings.api_host, port + 1)
    print_line(f" Port {port} is in use by another program. The API uses port {get_port(listener)}.")
    return listener


def _open_next_free_port(host: str, first: int) -> socket.socket:
    for port in range(first, first + MAX_PORTS_TO_TRY):
        try:
            return open_server_socket(host, port)
        except HoldfastError:
            continue
    return open_server_socket(host, 0)


def get_port(listener: socket.socket) -> int:
    """Return the TCP port of a listening socket."""
    port: int = listener.getsockname()[1]
    return port

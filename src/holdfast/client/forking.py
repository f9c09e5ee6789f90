"""Keep a forked child away from the connections and threads of its parent.

A child inherits the parent's sockets, its epoll instance and its locks, and none of its threads. It must not
write to those sockets, and it must not close them through asyncio either: removing a socket from the shared
epoll instance stops the parent from reading it. So a child forgets these objects without touching them.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Protocol


class ForkAware(Protocol):
    """An object that must drop inherited connections and threads in a forked child process."""

    def drop_inherited_state(self) -> None: ...


_fork_aware_objects: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def register_fork_aware(instance: ForkAware) -> None:
    """Call `instance.drop_inherited_state()` in each child process that this process forks."""
    _fork_aware_objects.add(instance)


def keep_alive_forever(instance: object) -> None:
    """Keep an object alive until this process ends, so that its finalizers never run.

    Finalizers of connections close their sockets through the event loop, also when the interpreter exits.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(instance))


def _drop_inherited_state() -> None:
    for instance in list(_fork_aware_objects):
        instance.drop_inherited_state()


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_drop_inherited_state)

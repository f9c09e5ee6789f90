"""Signals in a child process: the worker decides what happens to a task, not who signals all processes."""

from __future__ import annotations

import os
import signal
import threading


def ignore_stop_signals() -> None:
    """Ignore SIGINT and SIGTERM, which terminals and service managers send to every process of a worker.

    The worker then lets the task finish or stops it. Processes that the task starts do not ignore SIGTERM.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A handler, because other programs would inherit an ignored signal.
    signal.signal(signal.SIGTERM, _do_nothing)
    signal.siginterrupt(signal.SIGTERM, False)  # system calls of the task go on
    # A fork inherits the handler. SIGTERM waits until the fork has the default again, else it could get lost.
    os.register_at_fork(
        before=_block_sigterm, after_in_parent=_restore_mask, after_in_child=_restore_default_and_mask
    )


_saved = threading.local()


def _do_nothing(*_: object) -> None:
    pass


def _block_sigterm() -> None:
    _saved.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _restore_mask() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _saved.mask)


def _restore_default_and_mask() -> None:
    if signal.getsignal(signal.SIGTERM) is _do_nothing:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _restore_mask()

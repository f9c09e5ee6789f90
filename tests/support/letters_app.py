"""Consumers for tests with real worker processes. Each run appends lines to the file named in RECORD."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import psycopg

from holdfast import Client, Message, Reject, Snooze, consumer

VT = timedelta(seconds=2)


@dataclass
class Letter:
    number: int


def record(*words: object) -> None:
    line = " ".join(str(word) for word in (os.getpid(), *words)) + "\n"
    with Path(os.environ["RECORD"]).open("a") as file:
        file.write(line)


def get_gate_path(name: str) -> Path:
    return Path(os.environ["RECORD"]).with_name(name)


@consumer(queue="short", vt=VT, create=True)
async def record_letter(msg: Message[Letter]) -> None:
    record("short", msg.body.number, msg.reads)


@consumer(queue="waits", vt=VT, create=True)
async def wait_for_gate(msg: Message[str]) -> None:
    record("began", msg.body, msg.reads)
    while not get_gate_path(msg.body).exists():
        await asyncio.sleep(0.01)
    record("ended", msg.body, msg.reads)


@consumer(queue="hour", vt=timedelta(hours=1), create=True)
async def wait_with_long_visibility(msg: Message[str]) -> None:
    await wait_for_gate.function(msg)


@consumer(queue="plain", vt=VT, create=True)
def wait_in_thread(msg: Message[str]) -> None:
    record("began", msg.body, msg.reads)
    while not get_gate_path(msg.body).exists():
        msg.check()
        time.sleep(0.01)
    record("ended", msg.body, msg.reads)


@consumer(queue="blocks", vt=VT, create=True)
async def block_event_loop(msg: Message[float]) -> None:
    """Blocks the whole event loop, as careless code does."""
    record("began", "blocks", msg.reads)
    time.sleep(msg.body)
    record("ended", "blocks", msg.reads)


@consumer(queue="gil", vt=VT, create=True)
def hold_gil(msg: Message[int]) -> None:
    """A C call that lets no other thread of the process run for so many microseconds."""
    record("began", "gil", msg.reads)
    ctypes.PyDLL(None).usleep(msg.body)
    record("ended", "gil", msg.reads)


def record_dead_letter(msg: Message[Any], error: str) -> None:
    record("dead", msg.id, error.splitlines()[0])


@consumer(queue="Poison", vt=VT, create=True, max_reads=3, on_dead=record_dead_letter)
async def end_by_number(msg: Message[Letter]) -> None:
    record("poison", msg.body.number, msg.reads)
    if msg.body.number == 1:
        raise ValueError("number one")
    if msg.body.number == 2:
        raise Reject("never")
    if msg.body.number == 3 and msg.reads == 1:
        raise Snooze(timedelta(seconds=0))
    if msg.body.number == 4:
        os.kill(os.getpid(), 9)


@consumer(queue="kept", vt=VT, create=True, finish="delete")
def finish_in_own_transaction(msg: Message[str]) -> None:
    """Finishes in a transaction of its own, in plain code; waits in it for longer than vt."""
    with psycopg.connect(os.environ["HOLDFAST_DATABASE_URL"]) as connection:
        connection.execute("insert into written values (%s)", [f"{msg.body} {msg.reads}"])
        msg.done(connection)
        record("done", msg.body, msg.reads)
        if msg.body == "raises" and msg.reads == 1:
            raise OSError("after done")
        while not get_gate_path(msg.body).exists():
            time.sleep(0.01)


client = Client()


@consumer(queue="first", vt=VT, create=True)
async def finish_and_send_next(msg: Message[str]) -> None:
    """Finishes, sends the next and writes, all in one transaction."""
    connection = await asyncpg.connect(os.environ["HOLDFAST_DATABASE_URL"])
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("insert into written values ($1)", f"{msg.body} {msg.reads}")
    await client.queues.send("second", msg.body, on=connection)
    await msg.done(connection)
    if msg.body == "rollback" and msg.reads == 1:
        await transaction.rollback()
    else:
        await transaction.commit()
    await connection.close()
    record("first", msg.body, msg.reads)

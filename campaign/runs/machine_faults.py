"""Fault runs of the environment: wrong clocks, a full disk, large counters, an old snapshot, upgrades."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal

import asyncpg

from campaign.checker import check_i4_no_overlap, check_i12_takeover_in_time
from campaign.environment import FaultEnvironment
from campaign.runs import FaultDose, FaultRun
from campaign.runs.worker_faults import WORKER_COUNT, submit_load
from holdfast.engine import install, schema, scratch
from holdfast.engine.schema import FunctionFile, SchemaFiles

CLOCK_OFFSETS = ("+3600s", "-3600s", "+1d", "-30d", "+5s", "-5s")
SEQUENCE_START_VALUES = (2**31 - 50, 2**32 - 50, 2**53 - 50)
TRANSACTION_IDS = (1_500_000_000, 2**31 - 50, 3_500_000_000, 2**32 - 50)
SELECT_TRANSACTION_ID = "select pg_current_xact_id()::text::bigint"
ADVANCE_SEQUENCES = """select setval(s.oid::regclass, $1) from pg_class s
  where s.relkind = 'S' and s.relnamespace = 'holdfast'::regnamespace
    and s.relname <> all ('{sweep_horizon_us,last_full_sweep_us}')"""


async def _run_skew(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    """Kill workers whose clocks are wrong by seconds to a month. Only the clock of the server counts."""
    for number in range(WORKER_COUNT):
        await env.start_worker(*env.small_worker_options, skew=CLOCK_OFFSETS[number % len(CLOCK_OFFSETS)])
    async with submit_load(env, dose.tasks, 100):
        for number in env.iterate_faults(dose.faults):
            await asyncio.sleep(env.random.uniform(0.0, 0.1))
            env.kill_worker(await env.pick_busy_worker(), with_children=env.random.random() < 1 / 3)
            await env.start_worker(*env.small_worker_options, skew=CLOCK_OFFSETS[number % len(CLOCK_OFFSETS)])
    await env.wait_until_drained(300)
    return {"skews": list(CLOCK_OFFSETS)}


async def _run_work_with_kills(env: FaultEnvironment, tasks: int, kills: int) -> None:
    await env.keep_workers_running(WORKER_COUNT, *env.small_worker_options)
    async with submit_load(env, tasks, 50):
        for _ in env.iterate_faults(kills):
            await asyncio.sleep(env.random.uniform(0.0, 0.1))
            env.kill_worker(await env.pick_busy_worker())
            await env.start_worker(*env.small_worker_options)
    await env.wait_until_drained(300)


async def _run_edges(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    """Advance every sequence of the engine past 2^31, 2^32 and 2^53."""
    for edge in SEQUENCE_START_VALUES:
        async with env.open_connection() as connection:
            await connection.execute(ADVANCE_SEQUENCES.replace("$1", str(edge)))
        await _run_work_with_kills(
            env, dose.tasks // len(SEQUENCE_START_VALUES), dose.faults // len(SEQUENCE_START_VALUES)
        )
    return {"edges": list(SEQUENCE_START_VALUES)}


async def _run_xids(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    """Advance transaction ids past 2^31 and past the wraparound at 2^32."""
    async with env.open_connection() as connection:
        began = await connection.fetchval(SELECT_TRANSACTION_ID)
    for number in TRANSACTION_IDS:
        await env.stop_workers()
        await _advance_to_transaction(env, number)
        await _run_work_with_kills(
            env, dose.tasks // len(TRANSACTION_IDS), dose.faults // len(TRANSACTION_IDS)
        )
    async with env.open_connection() as connection:
        reached = await connection.fetchval(SELECT_TRANSACTION_ID)
    if reached <= 2**32:
        raise AssertionError(f"transaction {reached} is not beyond 2^32")
    return {"first transaction": began, "last transaction": reached}


async def _advance_to_transaction(env: FaultEnvironment, number: int) -> None:
    """Freeze every database, then restart the server at another transaction id."""
    address = scratch.build_database_url
    env.close_status_connection()
    await env.client.close()
    async with asyncpg.create_pool(env.server.url.reveal(), min_size=1, max_size=1) as pool:
        await pool.execute("update pg_database set datallowconn = true")
        names = [row[0] for row in await pool.fetch("select datname from pg_database")]
    for name in names:
        connection = await asyncpg.connect(address(env.server.url, name).reveal())
        await connection.execute("vacuum freeze")
        await connection.close()
    env.server.stop()
    env.server.skip_to_transaction(number)
    env.server.start()
    await env.server.wait_until_ready()


async def _run_pinned(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    """Hold an old snapshot during the whole run, so that vacuum cannot remove dead rows."""
    holder = await asyncpg.connect(env.url.reveal())
    await holder.execute("begin isolation level repeatable read; select count(*) from holdfast.tasks")
    for _ in range(WORKER_COUNT):
        await env.start_worker(*env.small_worker_options)
    async with submit_load(env, dose.tasks, 20):
        for _ in env.iterate_faults(dose.faults):
            await asyncio.sleep(env.random.uniform(0.0, 0.3))
            env.kill_worker(await env.pick_busy_worker())
            await env.start_worker(*env.small_worker_options)
    await env.wait_until_drained(300)
    await holder.close()
    return {}


async def _run_upgrades(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    """Repeat a rolling upgrade: replace every function, then restart one worker after the other."""
    await env.keep_workers_running(WORKER_COUNT, *env.small_worker_options)
    async with submit_load(env, dose.tasks, 100):
        for number in env.iterate_faults(dose.faults):
            await env.pick_busy_worker()
            for files in (_build_changed_schema_files(number), schema.load_packaged_schema()):
                applied = await install.migrate_database(env.url, env.settings, files=files)
                assert applied.functions_replaced, "no function was replaced"
            for pid in list(env.live_workers):
                env.send_signal(pid, signal.SIGTERM)
                await env.start_worker(*env.small_worker_options)
                await env.wait_for_progress()
                await env.wait_for_exit(pid)
    await env.wait_until_drained(300)
    async with env.open_connection() as connection:
        charged = await connection.fetchval(
            "select count(*) from holdfast.attempts where outcome <> 'released'"
        )
    if charged:
        raise AssertionError(f"{charged} attempts were charged, although no task fails")
    return {"upgrades": dose.faults, "workers replaced": dose.faults * WORKER_COUNT}


def _build_changed_schema_files(number: int) -> SchemaFiles:
    packaged = schema.load_packaged_schema()
    note = FunctionFile("zz_note.sql", f"select {number};\n")
    return SchemaFiles(packaged.migrations, (*packaged.functions, note))


async def _run_full(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    """Fill the disk of the server until the server panics or refuses writes, then free the space."""
    for _ in range(WORKER_COUNT):
        await env.start_worker(*env.small_worker_options)
    stopped = 0
    async with submit_load(env, dose.tasks, 100):
        for _ in env.iterate_faults(dose.faults):
            await env.keep_workers_running(WORKER_COUNT, *env.small_worker_options)
            await env.wait_for_progress()
            ballast = env.server.home.folder / "ballast"
            fill_disk(ballast)
            await asyncio.sleep(env.random.uniform(1.0, 5.0))
            ballast.unlink()
            if env.server.has_exited:
                stopped += 1
                env.server.start()
            await env.server.wait_until_ready()
    await env.wait_until_drained(300)
    refusals = env.server.log.read_text(errors="replace").count("No space left on device")
    if not refusals:
        raise AssertionError("the disk was never full")
    return {"filled": dose.faults, "refusals": refusals, "server stopped": stopped}


def fill_disk(path: os.PathLike[str]) -> None:
    """Write until the disk is full."""
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):  # noqa: PTH123
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(os.path.dirname(path)).free - 8192)  # noqa: PTH120
        while True:
            file.write(bytes(4096))


FAULT_RUNS = [
    FaultRun(
        "skew",
        "workers whose clocks are wrong",
        _run_skew,
        FaultDose(300, 12),
        FaultDose(10_000, 600),
        (check_i4_no_overlap, check_i12_takeover_in_time),
    ),
    FaultRun(
        "edges",
        "sequences beyond 2^31, 2^32 and 2^53",
        _run_edges,
        FaultDose(300, 9),
        FaultDose(6_000, 300),
        (check_i4_no_overlap,),
    ),
    FaultRun(
        "upgrades",
        "functions replaced and workers restarted in turn, under load",
        _run_upgrades,
        FaultDose(400, 3),
        FaultDose(20_000, 200),
        (check_i4_no_overlap,),
    ),
    FaultRun(
        "xids",
        "transaction numbers beyond 2^31 and 2^32",
        _run_xids,
        FaultDose(400, 8),
        FaultDose(8_000, 400),
        (check_i4_no_overlap,),
    ),
    FaultRun(
        "pinned",
        "an old snapshot is held while workers die",
        _run_pinned,
        FaultDose(600, 8),
        FaultDose(50_000, 500),
        (check_i4_no_overlap, check_i12_takeover_in_time),
    ),
    FaultRun(
        "full",
        "the server's disk is full for a while; needs root",
        _run_full,
        FaultDose(300, 3),
        FaultDose(5_000, 50),
        (check_i4_no_overlap,),
        options=(("max_wal_size", "64MB"), ("min_wal_size", "32MB")),
        small_disk=True,
    ),
]

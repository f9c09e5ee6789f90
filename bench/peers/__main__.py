"""`python -m bench.peers [names] [--parts basic,pinned]`: the same work by all of them on one server.

Every peer gets a database of its own and the same steps in turn. Where Holdfast loses, the tables say so.
What was found is kept and merged with what earlier runs found; `--write` puts all of it into docs/explain.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import signal
import subprocess
import time
from itertools import product
from pathlib import Path

import asyncpg

from bench.peers import pictures, report, results
from bench.peers.parts import PARTS, ROUNDS, Sizes
from bench.peers.peers import PEERS, ROOT
from bench.peers.trials import Trial, UnsupportedMeasurementError
from campaign.servers import FaultServer
from holdfast import settings
from holdfast.engine.embedded import binaries

OPTIONS = {"shared_buffers": "512MB", "max_wal_size": "4GB", "synchronous_commit": "on", "fsync": "on"}
ENVIRONMENTS = ROOT / ".bench"
MAX_SECONDS_PER_PART = 480.0  # seconds for one peer in one part
EXPECTED_ERRORS = (
    RuntimeError,
    OSError,
    TimeoutError,
    LookupError,
    ValueError,
    ZeroDivisionError,
    subprocess.SubprocessError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
)


async def measure(part: str, trial: Trial, sizes: Sizes, stamp: results.Stamp) -> results.Outcome:
    """One peer in one part. What breaks is told and does not stop the others."""
    outcome, started_at = results.Outcome(stamp), time.monotonic()
    try:
        trial.entry.prepare(ENVIRONMENTS)
        async with asyncio.timeout(MAX_SECONDS_PER_PART):
            await PARTS[part](trial, sizes, outcome.measurements)
    except UnsupportedMeasurementError as reason:
        outcome.lost = str(reason)
    except EXPECTED_ERRORS as error:
        outcome.lost = _reason(error).replace(trial.dsn, "its database")
        print(f"{part}, {trial.entry.name}: {error!r}", flush=True)
    with contextlib.suppress(*EXPECTED_ERRORS):  # the next part begins with dropping what is left
        await trial.close()
    outcome.seconds = time.monotonic() - started_at
    output = ", ".join(f"{what} {report.shown(value)}" for what, value in outcome.measurements.items())
    print(f"{part}, {trial.entry.name} ({outcome.seconds:.0f} s): {output or outcome.lost}", flush=True)
    return outcome


def _reason(error: BaseException) -> str:
    """One line that may be published: without the places of this machine."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"no end within {error.timeout:.0f} s"
    lines = str(error).strip().splitlines() or ["took too long"]
    return re.sub(r"(/[\w.-]+){2,}", "...", lines[-1])[:200]


async def measure_peers(options: argparse.Namespace, sizes: Sizes, folder: Path) -> results.Results:
    ENVIRONMENTS.mkdir(exist_ok=True)
    programs = Path(binaries.choose_binaries(settings.load_settings(), None).program("psql")).parent
    measurements, commit = (
        results.load(options.results),
        results.commit(),
    )  # what runs, whatever is committed meanwhile
    server = FaultServer(folder, OPTIONS)
    server.start()
    try:
        await server.ready()
        connection = await server.connect()
        version = "PostgreSQL " + (await connection.fetchval("show server_version")).split()[0]
        await connection.close()
        trials: dict[str, Trial] = {}
        for part in options.parts:
            stamp = results.stamp(version, commit)
            for number, name in product(range(ROUNDS.get(part, 1)), options.names or list(PEERS)):
                if name not in trials:
                    trials[name] = Trial(PEERS[name], server, ENVIRONMENTS, programs)
                outcome = await measure(part, trials[name], sizes, stamp)
                if number:
                    outcome.seconds += measurements[part][name].seconds
                results.put(measurements, part, name, outcome)
                results.save(options.results, measurements)
    finally:
        server.destroy()
    return measurements


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.peers", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PEERS)}; all if none are given")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {','.join(PARTS)}; all if not given")
    parser.add_argument("--scale", type=float, default=1.0, help="a fraction of the usual numbers of jobs")
    parser.add_argument("--backlog", type=int, default=Sizes.backlog, help="jobs that wait")
    parser.add_argument("--history", type=int, default=Sizes.history, help="jobs that have ended")
    parser.add_argument("--running", type=int, default=Sizes.running, help="jobs that are held")
    parser.add_argument(
        "--by-api",
        type=float,
        default=Sizes.by_api,
        help="seconds; what would take longer to enqueue is multiplied",
    )
    parser.add_argument("--seconds", type=float, default=Sizes.seconds, help="to watch a drain of very many")
    parser.add_argument(
        "--results", type=Path, default=ENVIRONMENTS / "results.json", help="kept and merged here"
    )
    parser.add_argument("--only-write", action="store_true", help="measure nothing, write what is kept")
    parser.add_argument(
        "--write", action="store_true", help="write docs/explain/benchmarks.md and its pictures"
    )
    options = parser.parse_args()
    options.parts = [part for part in options.parts.replace(" ", ",").split(",") if part]
    if unknown := [*(set(options.parts) - set(PARTS)), *(set(options.names) - set(PEERS))]:
        parser.error(f"nobody knows {', '.join(unknown)}")
    return options


def write(measurements: results.Results) -> None:
    names = {name for outcomes in measurements.values() for name in outcomes}
    versions = {}
    for name in names:
        with contextlib.suppress(OSError, subprocess.SubprocessError):  # kept results of one that is not here
            versions[name] = PEERS[name].version(ENVIRONMENTS)
    drains = {
        n: each.measurements
        for n, each in (measurements.get("turns") or measurements.get("basic", {})).items()
    }
    drawn = {"benchmarks.svg": pictures.bars(drains)} if drains else {}
    if growth := report.with_backlog(measurements):
        drawn["benchmarks-growth.svg"] = pictures.lines(growth)
    report.write(ROOT / "docs" / "explain", report.page(measurements, versions), drawn)


def main() -> None:
    options = parse_arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the server is ours to end
    folder = Path("/var/tmp" if os.access("/var/tmp", os.W_OK) else ".") / f"holdfast-bench-{os.getpid()}"
    sizes = Sizes(
        options.scale, options.backlog, options.history, options.running, options.seconds, options.by_api
    )
    measurements = (
        results.load(options.results)
        if options.only_write
        else asyncio.run(measure_peers(options, sizes, folder))
    )
    for part in [each for each in PARTS if each in measurements]:
        print(report.section(part, measurements))
    if options.write or options.only_write:
        write(measurements)


if __name__ == "__main__":
    main()

"""Compare Holdfast with other queues on one server: `python -m bench.peers [names] [--parts basic,pinned]`.

Every peer gets its own database and runs the same steps in turn. The tables also show where Holdfast loses.
Results are merged with those of earlier runs; `--write` writes all of them to docs/explain and README.md.
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

from bench.peers import pictures, readme, report, results
from bench.peers.parts import PART_FUNCTIONS, ROUNDS_BY_PART, WorkloadSizes
from bench.peers.peers import PEERS, ROOT
from bench.peers.trials import PeerTrial, UnsupportedMeasurementError
from campaign.servers import FaultServer
from holdfast import settings
from holdfast.engine.embedded import binaries

SERVER_OPTIONS = {"shared_buffers": "512MB", "max_wal_size": "4GB", "synchronous_commit": "on", "fsync": "on"}
ENVIRONMENTS_DIR = ROOT / ".bench"
MAX_SECONDS_PER_PART = 480.0  # for one peer
MEASUREMENT_ERRORS = (
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


async def measure_part(
    part: str, trial: PeerTrial, sizes: WorkloadSizes, stamp: results.RunStamp
) -> results.PeerResult:
    """Measure one peer in one part. Print an error instead of raising it, so that other peers go on."""
    result, started_at = results.PeerResult(stamp), time.monotonic()
    try:
        trial.peer.install_packages(ENVIRONMENTS_DIR)
        async with asyncio.timeout(MAX_SECONDS_PER_PART):
            await PART_FUNCTIONS[part](trial, sizes, result.measurements)
    except UnsupportedMeasurementError as reason:
        result.missing_reason = str(reason)
    except MEASUREMENT_ERRORS as error:
        result.missing_reason = _format_error_line(error).replace(trial.dsn, "its database")
        print(f"{part}, {trial.peer.name}: {error!r}", flush=True)
    with contextlib.suppress(*MEASUREMENT_ERRORS):  # the next part removes what is left
        await trial.remove_store()
    result.seconds = time.monotonic() - started_at
    output = ", ".join(
        f"{column} {report.format_value(value)}" for column, value in result.measurements.items()
    )
    print(
        f"{part}, {trial.peer.name} ({result.seconds:.0f} s): {output or result.missing_reason}", flush=True
    )
    return result


def _format_error_line(error: BaseException) -> str:
    """Return the last line of an error, without file paths, so that it can be published."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"not finished within {error.timeout:.0f} s"
    lines = str(error).strip().splitlines() or ["took too long"]
    return re.sub(r"(/[\w.-]+){2,}", "...", lines[-1])[:200]


async def measure_peers(
    options: argparse.Namespace, sizes: WorkloadSizes, folder: Path
) -> results.ResultsByPart:
    ENVIRONMENTS_DIR.mkdir(exist_ok=True)
    programs = Path(
        binaries.choose_postgres_binaries(settings.load_settings(), None).program_path("psql")
    ).parent
    measurements = results.load_results(options.results)
    commit = results.read_commit_hash()  # at the start, because somebody may commit during the run
    server = FaultServer(folder, SERVER_OPTIONS)
    server.start()
    try:
        await server.wait_until_ready()
        connection = await server.connect()
        version = "PostgreSQL " + (await connection.fetchval("show server_version")).split()[0]
        await connection.close()
        trials: dict[str, PeerTrial] = {}
        for part in options.parts:
            stamp = results.create_stamp(version, commit)
            for number, name in product(range(ROUNDS_BY_PART.get(part, 1)), options.names or list(PEERS)):
                if name not in trials:
                    trials[name] = PeerTrial(PEERS[name], server, ENVIRONMENTS_DIR, programs)
                result = await measure_part(part, trials[name], sizes, stamp)
                if number:
                    result.seconds += measurements[part][name].seconds
                results.replace_result(measurements, part, name, result)
                results.save_results(options.results, measurements)
    finally:
        server.destroy()
    return measurements


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.peers", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"Measure these peers: {', '.join(PEERS)}. Default: all.")
    parser.add_argument(
        "--parts",
        default=",".join(PART_FUNCTIONS),
        help=f"Run these parts: {','.join(PART_FUNCTIONS)}. Default: all.",
    )
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        help="Multiply the usual numbers of jobs by this factor. Default: 1.",
    )
    parser.add_argument(
        "--backlog", type=int, default=WorkloadSizes.backlog, help="Set the number of waiting jobs."
    )
    parser.add_argument(
        "--history", type=int, default=WorkloadSizes.history, help="Set the number of finished jobs."
    )
    parser.add_argument(
        "--running", type=int, default=WorkloadSizes.running, help="Set the number of running jobs."
    )
    parser.add_argument(
        "--max-enqueue-seconds",
        type=float,
        default=WorkloadSizes.max_enqueue_seconds,
        help="Copy rows in the tables when enqueueing would take longer.",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=WorkloadSizes.seconds,
        help="Stop a drain of very many jobs after this time.",
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=ENVIRONMENTS_DIR / "results.json",
        help="Merge the results into this file.",
    )
    parser.add_argument(
        "--only-write", action="store_true", help="Write the page from stored results without measuring."
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="Write docs/explain/benchmarks.md, its charts and the table of README.md.",
    )
    options = parser.parse_args()
    options.parts = [part for part in options.parts.replace(" ", ",").split(",") if part]
    if unknown := [*(set(options.parts) - set(PART_FUNCTIONS)), *(set(options.names) - set(PEERS))]:
        parser.error(f"unknown part or peer: {', '.join(unknown)}")
    return options


def write_report_page(measurements: results.ResultsByPart) -> None:
    names = {name for peer_results in measurements.values() for name in peer_results}
    versions = {}
    for name in names:
        with contextlib.suppress(OSError, subprocess.SubprocessError):  # the peer may not be installed here
            versions[name] = PEERS[name].read_package_version(ENVIRONMENTS_DIR)
    drains = {
        n: each.measurements
        for n, each in (measurements.get("turns") or measurements.get("basic", {})).items()
    }
    charts = {"benchmarks.svg": pictures.draw_drain_bars(drains)} if drains else {}
    if growth := report.merge_growth_and_backlog(measurements):
        charts["benchmarks-growth.svg"] = pictures.draw_growth_lines(growth)
    folder = ROOT / "docs" / "explain"
    old_page = (folder / "benchmarks.md").read_text(encoding="utf-8")
    report.write_page(folder, report.build_page(measurements, versions, old_page), charts)
    if "holdfast" in measurements.get("turns", {}):
        readme.write_readme(ROOT / "README.md", measurements["turns"])


def main() -> None:
    options = parse_arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # run `finally`, which removes the server
    folder = Path("/var/tmp" if os.access("/var/tmp", os.W_OK) else ".") / f"holdfast-bench-{os.getpid()}"
    sizes = WorkloadSizes(
        options.scale,
        options.backlog,
        options.history,
        options.running,
        options.seconds,
        options.max_enqueue_seconds,
    )
    measurements = (
        results.load_results(options.results)
        if options.only_write
        else asyncio.run(measure_peers(options, sizes, folder))
    )
    for part in [name for name in PART_FUNCTIONS if name in measurements]:
        print(report.format_section(part, measurements))
    if options.write or options.only_write:
        write_report_page(measurements)


if __name__ == "__main__":
    main()

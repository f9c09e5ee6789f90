"""Fixtures of all tests: one PostgreSQL server per run, one database per test.

The server is the embedded one (HOLDFAST_PG_BIN chooses other binaries), or the server in DATABASE_URL. All
xdist processes share the server. The controlling process creates its folder, the first process starts it and
creates the template database, and it stops when the last process ends.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import asyncpg
import hypothesis
import pytest

from holdfast import settings as settings_module
from holdfast.engine import embedded, scratch
from holdfast.engine.connection import Connection, Database
from holdfast.settings import Secret, Settings
from holdfast.testing import Clock

HOME_VARIABLE = "HOLDFAST_TEST_HOME"
# Faster. No test here needs durability; tests of crashes start their own servers.
SERVER_OPTIONS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "200",
}

# No generated test fails because the machine is slow: Hypothesis would give one example 200 ms. CI tries the
# same examples each time, so that it says something about the change; everyone else tries new ones.
hypothesis.settings.register_profile(
    "holdfast",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize="CI" in os.environ,
)
hypothesis.settings.load_profile("holdfast")

MIN_FREE_MEMORY_BYTES = 8 << 30
DATABASES_PER_DROP = 25  # ended tests keep up to this many databases of 12 MB per process


# Tests that take minutes together: they kill servers and workers repeatedly or open pages in a browser.
LONG_TEST_FILES = (
    "api/test_browser_client.py",
    "campaign/test_models.py",
    "campaign/test_short.py",
    "cli/test_api.py",
    "cli/test_db.py",
    "cli/test_demo.py",
    "cli/test_dev.py",
    "cli/test_file_check.py",
    "cli/test_first_steps.py",
    "cli/test_shard.py",
    "client/test_shard_servers.py",
    "cli/test_templates.py",
    "dashboard/test_acceptance.py",
    "dashboard/test_browser.py",
    "dashboard/test_night_tasks.py",
    "dashboard/test_read_replica.py",
    "cli/test_shard_processes.py",
    "dashboard/test_secret_texts.py",
    "dashboard/test_shards_in_browser.py",
    "deploy/test_image_steps.py",
    "docs/test_quickstart.py",
    "docs/test_site_browser.py",
    "deploy/test_prometheus_scrape.py",
    "engine/queues/test_queue_clients.py",
    "engine/test_bounds.py",
    "engine/test_embedded.py",
    "engine/test_embedded_kills.py",
    "engine/test_embedded_recovery.py",
    "engine/test_model.py",
    "engine/test_point_in_time_recovery.py",
    "engine/test_standby.py",
    "engine/test_storm.py",
    "packaging/test_bookmarks_wheel.py",
    "packaging/test_clips_wheel.py",
    "packaging/test_compute_clusters.py",
    "packaging/test_example_application.py",
    "packaging/test_media_wheel.py",
    "packaging/test_rolling_upgrade.py",
    "systems/bookmarks/test_hard_pages.py",
    "systems/bookmarks/test_page_in_browser.py",
    "systems/bookmarks/test_real_capture.py",
    "systems/bookmarks/test_worker_kills.py",
    "systems/capture/test_browser_pool.py",
    "systems/clips/test_page_in_browser.py",
    "systems/clips/test_sources.py",
    "systems/clips/test_supabase_client.py",
    "systems/clips/test_worker_kills.py",
    "systems/capture/test_ending_event_loops.py",
    "systems/capture/test_hard_pages.py",
    "systems/capture/test_images.py",
    "systems/capture/test_page_capture.py",
    "systems/media/test_broken_servers.py",
    "systems/media/test_ffmpeg.py",
    "systems/media/test_page_in_browser.py",
    "systems/media/test_program_kills.py",
    "systems/media/test_whole_job.py",
    "systems/media/test_worker_kills.py",
    "systems/media/test_ytdlp.py",
    "systems/test_front_door_in_browser.py",
    "systems/test_pdf_rendering.py",
    "systems/test_template_content.py",
    "systems/test_visit_in_browser.py",
    "systems/test_web_pages.py",
    "systems/test_worker_kills.py",
    "typing/test_seeded.py",
    "worker/test_file_kills.py",
    "worker/test_hard.py",
    "worker/test_prefetch_kills.py",
    "worker/test_revival.py",
    "worker/test_supervisor.py",
    "worker/test_sentry_check_ins.py",
)


def _find_memory_folder() -> str | None:
    """Return a folder in memory with room for the server, or None. Dropping databases waits for the disk."""
    memory = Path("/dev/shm")
    has_room = memory.is_dir() and shutil.disk_usage(memory).free > MIN_FREE_MEMORY_BYTES
    return str(memory) if has_room else None


# Single tests of other files that start several servers or sessions of their own.
LONG_TESTS = (
    "test_application_of_a_module_uses_the_database_of_each_test",
    "test_code_of_the_pages_about_other_systems_runs",
    "test_code_of_other_systems_is_imported_with_the_real_packages",
    "test_a_bulk_retry_runs_in_stages",
    "test_a_cancel_reads_only_jobs_of_its_filter[no statistics]",
    "test_a_complete_report_outlives_its_job",
    "test_a_document_of_five_hundred_pages",
    "test_a_message_of_64_megabytes_goes_through",
    "test_an_error_of_fifty_megabytes",
    "test_application_passes_the_tests_of_the_last_chapter",
    "test_asynchronous_test_in_strict_mode_names_the_missing_setting",
    "test_asynchronous_test_runs_in_auto_mode",
    "test_folders_with_unusual_names_work[blank]",
    "test_folders_with_unusual_names_work[bytes]",
    "test_folders_with_unusual_names_work[long]",
    "test_folders_with_unusual_names_work[quotes]",
    "test_folders_with_unusual_names_work[shell]",
    "test_bodies_of_64_megabytes_are_sent_and_larger_ones_refused",
    "test_compose_file_fits_its_schema",
    "test_drained_shard_gets_no_new_work",
    "test_every_clock_change[America/New_York]",
    "test_every_clock_change[Australia/Lord_Howe]",
    "test_every_clock_change[Pacific/Apia]",
    "test_every_pair_of_operations[rollback-graph-expired]",
    "test_every_pair_of_operations[rollback-graph-live]",
    "test_failed_and_cancelled_reports_say_what_has_succeeded",
    "test_key_is_found_after_a_shard_was_added",
    "test_kill_9_at_random_instants_leaves_a_state_from_which_the_next_run_goes_on",
    "test_many_streams_share_one_listening_connection[off]",
    "test_no_generated_request_causes_a_server_error[service]",
    "test_one_failed_request_is_retried_or_raises",
    "test_operating_system_error_is_a_sentence",
    "test_orders_example_passes_its_tests",
    "test_run_without_the_fixture_starts_no_server",
    "test_sample_project_passes_and_fails_as_expected_and_leaves_nothing_behind",
    "test_schedule_is_on_one_shard_and_stays_there",
    "test_sigkill_leaves_no_process_running",
    "test_the_local_engine_hears_speech",
    "test_the_page_imports_a_file_in_a_browser",
    "test_two_at_the_same_moment_both_serve",
    "test_worker_registers_each_schedule_on_one_shard",
    "test_steps_of_the_build_job_work_here",
    "test_worker_that_dies_ends_the_demo",
    "test_workflow_fits_its_schema[ci]",
    "test_workflow_fits_its_schema[release]",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.as_posix().endswith(LONG_TEST_FILES) or item.name in LONG_TESTS:
            item.add_marker(pytest.mark.long)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        missing = [name for name in LONG_TEST_FILES if not (Path(__file__).parent / name).exists()]
        assert not missing, f"LONG_TEST_FILES names files that do not exist: {missing}"
        home = tempfile.mkdtemp(prefix="holdfast-test-", dir=_find_memory_folder())
        Path(home).chmod(0o755)
        os.environ[HOME_VARIABLE] = home


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        settings = settings_module.load_settings({"home": os.environ[HOME_VARIABLE]})
        if settings.database_url:
            asyncio.run(
                scratch.drop_test_database(settings.database_url, build_template_name(settings), settings)
            )
        else:
            embedded.stop_server(settings)
        shutil.rmtree(settings.home, ignore_errors=True)


def build_template_name(settings: Settings) -> str:
    return "hf_template_" + settings.home.name.rpartition("-")[2].lower()


@pytest.fixture(scope="session")
def settings() -> Settings:
    """The settings of the environment, with a home folder for this run only."""
    return settings_module.load_settings({"home": os.environ[HOME_VARIABLE]})


@pytest.fixture(scope="session")
def server_url(settings: Settings) -> Generator[Secret]:
    if settings.database_url:
        yield settings.database_url
        return
    server = embedded.start_server(settings, options=SERVER_OPTIONS)
    yield server.url
    server.release()


@pytest.fixture(scope="session")
def template(server_url: Secret, settings: Settings) -> str:
    name = build_template_name(settings)
    with (settings.home / "template.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        created = settings.home / "template.made"
        if not created.exists():
            asyncio.run(scratch.create_template_database(server_url, name, settings))
            created.touch()
    return name


def _generate_database_name() -> str:
    return f"hf_test_{uuid.uuid4().hex[:16]}"


@pytest.fixture(scope="session")
def dropped_later(server_url: Secret, settings: Settings) -> Generator[list[str]]:
    """Names of databases of ended tests. Dropping many at once is faster."""
    names: list[str] = []
    yield names
    if settings.database_url and names:
        asyncio.run(scratch.drop_test_databases(server_url, names, settings))


async def _drop_later(name: str, dropped_later: list[str], server: Secret, settings: Settings) -> None:
    dropped_later.append(name)
    if len(dropped_later) >= DATABASES_PER_DROP:
        await scratch.drop_test_databases(server, dropped_later, settings)
        dropped_later.clear()


@pytest.fixture
async def url(
    server_url: Secret, template: str, settings: Settings, dropped_later: list[str]
) -> AsyncGenerator[Secret]:
    """The URL of a new database with Holdfast and a clock that tests can move."""
    name = _generate_database_name()
    await scratch.create_test_database(server_url, name, settings, template=template)
    yield scratch.build_database_url(server_url, name)
    await _drop_later(name, dropped_later, server_url, settings)


@pytest.fixture
async def empty_url(
    server_url: Secret, settings: Settings, dropped_later: list[str]
) -> AsyncGenerator[Secret]:
    """The URL of a new database without Holdfast."""
    name = _generate_database_name()
    await scratch.create_test_database(server_url, name, settings)
    yield scratch.build_database_url(server_url, name)
    await _drop_later(name, dropped_later, server_url, settings)


@pytest.fixture
async def db(url: Secret, settings: Settings) -> AsyncGenerator[Database]:
    async with Database(url, settings) as database:
        yield database


@pytest.fixture
async def conn(url: Secret) -> AsyncGenerator[Connection]:
    connection = await asyncpg.connect(url.reveal())
    yield connection
    await connection.close()


@pytest.fixture
async def second(url: Secret) -> AsyncGenerator[Connection]:
    connection = await asyncpg.connect(url.reveal())
    yield connection
    await connection.close()


@pytest.fixture
def clock(url: Secret, settings: Settings) -> Clock:
    return Clock(url, settings)

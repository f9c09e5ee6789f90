"""`holdfast file check`: compare the files in the database with the object store, as after a restore."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import click

from holdfast.cli.actor import record_client_audit_event
from holdfast.cli.file import file_command
from holdfast.cli.session import CliSession, confirmation_options, json_option, pass_session
from holdfast.client import Client
from holdfast.client.files import MIN_ORPHAN_AGE
from holdfast.errors import ConflictError, NotFoundError, RefusedError
from holdfast.model import Artifact

CONCURRENT_REQUESTS = 16
PROBLEM_COLUMNS = ("problem", "id", "name", "job_id", "key", "repair")
ProblemKind = Literal["missing", "damaged", "orphan"]


@dataclass
class FileProblem:
    """A file without its content, or content without its file."""

    problem: ProblemKind
    key: str
    file: Artifact | None = None
    repair: str = ""

    def build_row(self) -> dict[str, object]:
        file = self.file
        return {
            "problem": self.problem,
            "id": file and file.id,
            "name": file and file.name,
            "job_id": file and file.job_id,
            "key": self.key,
            "repair": self.repair,
        }


@file_command.command("check")
@click.option(
    "--content",
    is_flag=True,
    help="Read every file and compare its checksum too. Default: compare only the sizes.",
)
@click.option(
    "--repair",
    is_flag=True,
    help="Run the tasks of missing and damaged files again, delete the files that no stored task can create "
    "again, and delete orphaned objects older than one day. Default: only report.",
)
@confirmation_options
@json_option
@click.pass_context
@pass_session
def check_files(
    session: CliSession, context: click.Context, content: bool, repair: bool, yes: bool, dry_run: bool
) -> None:
    """Find missing or damaged content and unused objects.

    Files whose content is missing or damaged, and stored objects that no file refers to.

    Run it after a restore: the database and the object store may be of different moments. Exit with code 1 if
    there is a problem that was not repaired.
    """
    if repair and session.has_selected_shard:
        raise RefusedError(
            "One shard does not know the files of the others, which are in the same store.",
            fix="Run it for all shards: without --shard and HOLDFAST_SHARD.",
            field="shard",
        )

    async def check_and_repair() -> list[FileProblem]:
        async with session.client() as client:
            problems = await find_problems(client, content=content)
            if problems and repair:
                consequence = f"This repairs or deletes {len(problems)} files and objects."
                if session.confirm(consequence, yes=yes, dry_run=dry_run):
                    await repair_problems(client, problems)
            return problems

    problems = session.run_async(check_and_repair())
    if not problems:
        session.output.print_line("Every file has its content, and every object belongs to a file.")
    session.output.print_rows([problem.build_row() for problem in problems], PROBLEM_COLUMNS)
    if any(not problem.repair for problem in problems):
        context.exit(1)


async def find_problems(client: Client, *, content: bool) -> list[FileProblem]:
    """Compare every visible file with the store, and every stored object with the database."""
    places = asyncio.Semaphore(CONCURRENT_REQUESTS)

    async def check_file(file: Artifact) -> FileProblem | None:
        async with places:
            return await _find_file_problem(client, file, content=content)

    files = await client.files.list()
    problems = [problem for problem in await asyncio.gather(*map(check_file, files)) if problem]
    async for keys in client.files.orphaned_objects(older=MIN_ORPHAN_AGE):
        problems += [FileProblem("orphan", key) for key in keys]
    return problems


async def _find_file_problem(client: Client, file: Artifact, *, content: bool) -> FileProblem | None:
    stored = await client.files.store.find(file.key)
    if stored is None:
        return FileProblem("missing", file.key, file)
    if stored.size != file.size:
        return FileProblem("damaged", file.key, file)
    if content:
        try:
            async with client.files.open(file) as reader:
                async for _ in reader:
                    pass
        except NotFoundError:
            return FileProblem("missing", file.key, file)
        except ConflictError:  # the checksum differs
            return FileProblem("damaged", file.key, file)
    return None


async def repair_problems(client: Client, problems: Sequence[FileProblem]) -> None:
    """Repair what can be repaired, and write into each problem what was done."""
    for problem in problems:
        if problem.file is None:
            await client.files.store.delete([problem.key])
            problem.repair = "object deleted"
        else:
            problem.repair = await _repair_file(client, problem.file)


async def _repair_file(client: Client, file: Artifact) -> str:
    try:
        await client.files.regenerate(file.id)
    except (NotFoundError, ConflictError):  # no stored task can create it again
        await client.files.delete(file.id)
        await record_client_audit_event(client, "artifact.delete", str(file.id), name=file.name)
        return "file deleted"
    return "task runs again"

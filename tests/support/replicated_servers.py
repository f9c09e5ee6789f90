"""A PostgreSQL primary and a streaming standby of it, for tests of failover and of reads on a replica."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from campaign.servers import FaultServer
from holdfast.engine import install, scratch
from holdfast.settings import Secret, Settings

DATABASE_NAME = "replicated"


@dataclass(frozen=True)
class ReplicatedServers:
    """The two servers. Both addresses lead to the same database with Holdfast."""

    primary: FaultServer
    standby: FaultServer

    @property
    def primary_url(self) -> Secret:
        return scratch.build_database_url(self.primary.url, DATABASE_NAME)

    @property
    def standby_url(self) -> Secret:
        return scratch.build_database_url(self.standby.url, DATABASE_NAME)


@contextmanager
def run_replicated_servers(settings: Settings) -> Generator[ReplicatedServers]:
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="replicated-", dir=memory if memory.is_dir() else None))
    folder.chmod(0o755)
    servers: list[FaultServer] = []
    try:
        primary = FaultServer(folder / "primary", {"fsync": "off"})
        servers.append(primary)
        primary.start()
        asyncio.run(primary.wait_until_ready())
        asyncio.run(create_database(primary, settings))
        standby = FaultServer(folder / "standby", standby_of=primary)
        servers.append(standby)
        standby.start()
        asyncio.run(standby.wait_until_ready())
        yield ReplicatedServers(primary, standby)
    finally:
        for server in servers:
            server.destroy()
        shutil.rmtree(folder, ignore_errors=True)


async def create_database(primary: FaultServer, settings: Settings) -> None:
    """Create the database of the tests on a server, with Holdfast."""
    connection = await primary.connect()
    await connection.execute(f"create database {DATABASE_NAME}")
    await connection.close()
    await install.migrate_database(scratch.build_database_url(primary.url, DATABASE_NAME), settings)

"""A PostgreSQL cluster of three nodes under Patroni and etcd, with one synchronous standby.

Each node is a Patroni process with its server. A fault hits all processes of a node at once, as the loss of a
machine does: Patroni alone would restart a server that died.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from campaign.processes import UnsupportedMachineError, list_descendants
from campaign.servers import DEFAULT_SERVER_OPTIONS, choose_free_port
from holdfast import settings as settings_module
from holdfast.engine.embedded import binaries
from holdfast.engine.embedded.account import (
    ServerOsAccount,
    build_server_environment,
    choose_server_account,
)
from holdfast.engine.embedded.home import EmbeddedHome
from holdfast.settings import Secret

INSTALL_SCRIPT: Final = Path(__file__).parents[1] / "scripts" / "patroni.sh"
NODE_COUNT: Final = 3
# The smallest values that Patroni accepts for ttl, with the relation loop_wait + 2 * retry_timeout <= ttl.
TTL_S: Final = 20
LOOP_WAIT_S: Final = 2
RETRY_TIMEOUT_S: Final = 5
MAX_RECOVERY_S: Final = 180.0


@dataclass
class PatroniNode:
    """One node: the ports and folders of Patroni and of its server."""

    name: str
    folder: Path
    port: int
    api_port: int
    process: subprocess.Popen[bytes] | None = None
    is_frozen: bool = False

    def list_pids(self) -> list[int]:
        """Return the processes of Patroni and of the server, which does not belong to Patroni's group."""
        roots = [self.process.pid] if self.process and self.process.poll() is None else []
        with contextlib.suppress(OSError, ValueError, IndexError):
            postmaster = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
            if Path(f"/proc/{postmaster}/cwd").resolve() == self.folder / "data":
                roots.append(postmaster)
        return list(dict.fromkeys(pid for root in roots for pid in (root, *list_descendants(root))))


@dataclass
class PatroniCluster:
    """Three nodes and one etcd in a folder, with faults that hit whole nodes."""

    folder: Path
    password: str = field(default_factory=lambda: secrets.token_hex(12))
    nodes: list[PatroniNode] = field(default_factory=list[PatroniNode])
    _etcd: subprocess.Popen[bytes] | None = None
    _etcd_port: int = field(default_factory=choose_free_port)

    def __post_init__(self) -> None:
        settings = settings_module.load_settings({"home": str(self.folder)})
        self._account: ServerOsAccount = choose_server_account(EmbeddedHome(settings))
        self._programs = binaries.make_postgres_binaries_runnable(
            binaries.choose_postgres_binaries(settings, None), self._account
        )
        self._tools = _install_tools()

    async def start(self) -> None:
        """Start etcd and three nodes, and wait for a leader with a synchronous standby."""
        self._make_folder(self.folder)
        self._start_etcd()
        for number in range(1, NODE_COUNT + 1):
            node = PatroniNode(
                f"node{number}", self.folder / f"node{number}", choose_free_port(), choose_free_port()
            )
            self._make_folder(node.folder)
            (node.folder / "patroni.json").write_text(json.dumps(self._build_config(node)))
            self._account.take_ownership(node.folder / "patroni.json")
            self.nodes.append(node)
            self.start_node(node)
        await self.wait_until_healthy()

    def build_url(self, database: str) -> Secret:
        """Return an address with all nodes, as an application configures it."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return Secret(f"postgresql://postgres:{self.password}@{hosts}/{database}?sslmode=disable")

    def start_node(self, node: PatroniNode) -> None:
        command = [str(self._tools / "patroni"), str(node.folder / "patroni.json")]
        node.process = self._start_process(command, node.folder / "patroni.log")

    async def switch_over(self) -> None:
        """Ask Patroni for a planned switchover to the synchronous standby, and wait for the new leader."""
        leader = await self.get_leader()
        status, answer = await self._request(
            leader, "/switchover", {"leader": leader.name}, timeout_s=MAX_RECOVERY_S
        )
        if status != 200:
            raise AssertionError(f"Patroni refused the switchover: {status} {answer}")
        await self.wait_for_other_leader(leader)

    async def kill_leader(self) -> PatroniNode:
        """Kill every process of the leader, and wait until another node leads."""
        leader = await self.get_leader()
        _send_signal(leader, signal.SIGKILL)
        if leader.process is not None:
            leader.process.wait(20)
        await self.wait_for_other_leader(leader)
        return leader

    async def freeze_leader(self) -> PatroniNode:
        """Stop every process of the leader without ending it, and wait until another node leads."""
        leader = await self.get_leader()
        leader.is_frozen = True
        _send_signal(leader, signal.SIGSTOP)
        await self.wait_for_other_leader(leader)
        return leader

    def thaw(self, node: PatroniNode) -> None:
        """Continue a frozen node, which still takes itself for the leader."""
        _send_signal(node, signal.SIGCONT)
        node.is_frozen = False

    async def get_leader(self) -> PatroniNode:
        for member in await self._list_members():
            if member["role"] == "leader" and member["state"] == "running":
                return next(node for node in self.nodes if node.name == member["name"])
        raise AssertionError("the cluster has no leader")

    async def wait_for_other_leader(self, previous: PatroniNode) -> None:
        async def has_other_leader() -> bool:
            return (await self.get_leader()).name != previous.name

        await _wait_until(has_other_leader, "another leader", self.describe_logs)

    async def wait_until_healthy(self) -> None:
        """Wait until all nodes run on one timeline and one of the standbys is synchronous."""

        async def is_healthy() -> bool:
            members = await self._list_members()
            roles = sorted(member["role"] for member in members)
            return (
                roles == ["leader", "replica", "sync_standby"]
                and all(member["state"] in {"running", "streaming"} for member in members)
                and len({member.get("timeline") for member in members}) == 1
            )

        await _wait_until(is_healthy, "a leader with two standbys", self.describe_logs)

    def describe_logs(self) -> str:
        """Return the last lines of the log of every node, for an error."""
        logs = (node.folder / "patroni.log" for node in self.nodes)
        return "\n".join(f"{log.parent.name}: {log.read_text(errors='replace')[-1500:]}" for log in logs)

    def destroy(self) -> None:
        """End all processes and delete the folder."""
        for node in self.nodes:
            _send_signal(node, signal.SIGKILL)
            if node.process is not None:
                node.process.wait(20)
        if self._etcd is not None:
            self._etcd.kill()
            self._etcd.wait(20)
        shutil.rmtree(self.folder, ignore_errors=True)

    async def _list_members(self) -> list[dict[str, Any]]:
        for node in self.nodes:
            if node.is_frozen or node.process is None or node.process.poll() is not None:
                continue
            with contextlib.suppress(OSError, ValueError):
                status, answer = await self._request(node, "/cluster")
                if status == 200:
                    members: list[dict[str, Any]] = json.loads(answer)["members"]
                    return members
        raise AssertionError("no node answers")

    async def _request(
        self, node: PatroniNode, path: str, body: dict[str, str] | None = None, timeout_s: float = 5.0
    ) -> tuple[int, str]:
        """Send a request to the REST API of Patroni."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{node.api_port}{path}", data=json.dumps(body).encode() if body else None
        )

        def send() -> tuple[int, str]:
            try:
                with urllib.request.urlopen(request, timeout=timeout_s) as response:
                    return response.status, response.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

        return await asyncio.to_thread(send)

    def _start_etcd(self) -> None:
        address, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{choose_free_port()}"
        self._make_folder(self.folder / "etcd")
        command = [
            str(self._tools / "etcd"), "--data-dir", str(self.folder / "etcd"), "--name", "etcd",
            "--listen-client-urls", address, "--advertise-client-urls", address, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", f"etcd={peer}",
        ]  # fmt: skip
        self._etcd = self._start_process(command, self.folder / "etcd.log")

    def _start_process(self, command: list[str], log: Path) -> subprocess.Popen[bytes]:
        switch: dict[str, Any] = {}
        if not self._account.is_current_user:
            switch = {"user": self._account.uid, "group": self._account.gid, "extra_groups": []}
        with log.open("ab") as output:
            return subprocess.Popen(
                command, env=build_server_environment(), cwd="/", stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=True, **switch,
            )  # fmt: skip

    def _make_folder(self, folder: Path) -> None:
        folder.mkdir(mode=0o755)
        self._account.take_ownership(folder)

    def _build_config(self, node: PatroniNode) -> dict[str, Any]:
        """Return the configuration of a node. Patroni reads YAML, of which JSON is a part."""
        login = {"username": "postgres", "password": self.password}
        return {
            "scope": "campaign",
            "name": node.name,
            "restapi": {
                "listen": f"127.0.0.1:{node.api_port}",
                "connect_address": f"127.0.0.1:{node.api_port}",
            },
            "etcd3": {"host": f"127.0.0.1:{self._etcd_port}"},
            "bootstrap": {
                "dcs": {
                    "ttl": TTL_S,
                    "loop_wait": LOOP_WAIT_S,
                    "retry_timeout": RETRY_TIMEOUT_S,
                    "synchronous_mode": True,
                    "postgresql": {"use_pg_rewind": True, "parameters": DEFAULT_SERVER_OPTIONS},
                },
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, "data-checksums"],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{node.port}",
                "connect_address": f"127.0.0.1:{node.port}",
                "data_dir": str(node.folder / "data"),
                "bin_dir": str(self._programs.folder),
                "pgpass": str(node.folder / "pgpass"),
                "authentication": {
                    "superuser": login,
                    "replication": {"username": "replicator", "password": self.password},
                    "rewind": login,
                },
                "parameters": {"unix_socket_directories": str(node.folder)},
                "pg_hba": [
                    "host replication replicator 127.0.0.1/32 scram-sha-256",
                    "host all all 127.0.0.1/32 scram-sha-256",
                ],
            },
        }


def _install_tools() -> Path:
    done = subprocess.run([INSTALL_SCRIPT], check=False, capture_output=True, text=True)
    if done.returncode:
        raise UnsupportedMachineError(f"cannot install Patroni and etcd: {done.stderr.strip()[-500:]}")
    return Path(done.stdout.strip())


def _send_signal(node: PatroniNode, number: signal.Signals) -> None:
    """Send a signal to all processes of a node, until a look finds no new ones."""
    reached: set[int] = set()
    while new := set(node.list_pids()) - reached:
        for pid in new:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        reached |= new


async def _wait_until(condition: Callable[[], Any], what: str, describe: Callable[[], str]) -> None:
    deadline = time.monotonic() + MAX_RECOVERY_S
    while True:
        with contextlib.suppress(AssertionError):
            if await condition():
                return
        if time.monotonic() > deadline:
            raise RuntimeError(f"the cluster did not have {what} in {MAX_RECOVERY_S:.0f} s\n{describe()}")
        await asyncio.sleep(0.2)

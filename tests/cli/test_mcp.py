"""`holdfast mcp`: the protocol spoken to a real process, and every way to break it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator
from typing import Any

import pytest
from hands import Hand
from shell import Captured, Shell

from holdfast.engine.connection import Connection
from holdfast.settings import Secret


class Agent:
    """Speaks JSON-RPC to a process, a line at a time."""

    def __init__(self, url: Secret, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "--database-url", url.reveal(), "mcp", *options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.asked = 0

    def raw(self, line: bytes) -> Any:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def ask(self, method: str, **params: Any) -> Any:
        self.asked += 1
        answer = self.raw(
            json.dumps({"jsonrpc": "2.0", "id": self.asked, "method": method, "params": params}).encode()
        )
        assert (answer["jsonrpc"], answer["id"]) == ("2.0", self.asked)
        return answer["result"] if "result" in answer else answer["error"]

    def tool(self, name: str, **arguments: Any) -> Any:
        result = self.ask("tools/call", name=name, arguments=arguments)
        text = result["content"][0]["text"]
        return text if result["isError"] else json.loads(text)

    def close(self) -> int:
        assert self.process.stdin
        self.process.stdin.close()
        assert self.process.stdout
        self.process.stdout.close()
        return self.process.wait(30)


@pytest.fixture
def shell(url: Secret, capsys: Captured) -> Shell:
    return Shell(url, capsys)


@pytest.fixture
def agent(url: Secret) -> Generator[Agent]:
    agent = Agent(url)
    yield agent
    assert agent.close() == 0


def test_a_session(shell: Shell, agent: Agent) -> None:
    hello = agent.ask("initialize", protocolVersion="2025-03-26", capabilities={}, clientInfo={"name": "t"})
    assert hello["protocolVersion"] == "2025-03-26"
    assert hello["serverInfo"]["name"] == "holdfast"
    assert agent.process.stdin
    agent.process.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
    tools = {tool["name"]: tool for tool in agent.ask("tools/list")["tools"]}
    assert set(tools) == {"list_jobs", "show_job", "why", "queues", "errors", "workers"}
    assert all(tool["annotations"]["readOnlyHint"] for tool in tools.values())
    assert tools["show_job"]["inputSchema"]["required"] == ["id"]
    job_id = shell(
        "submit", "shoot", "-q", "default", "url=x", "password=hunter2", "--label=note=token"
    ).strip()
    [found] = agent.tool("list_jobs", search="task:shoot")["jobs"]
    assert found["id"] == job_id
    assert found["params"] == {"url": "x", "password": "•••"}
    shown = agent.tool("show_job", id=job_id[:18])
    assert shown["status"] == "queued"
    assert "hunter2" not in json.dumps(shown)
    assert agent.tool("why", id=job_id)["reasons"][0]["reason"] == "no_worker"
    assert agent.tool("queues")["queues"][0]["queue"] == "default"
    assert agent.tool("errors") == {"causes": []}
    assert agent.tool("workers") == {"workers": []}
    assert agent.ask("ping") == {}
    resources = [each["uri"] for each in agent.ask("resources/list")["resources"]]
    assert resources == ["holdfast://queues", "holdfast://errors", "holdfast://workers"]
    [template] = agent.ask("resources/templates/list")["resourceTemplates"]
    for uri in (*resources, template["uriTemplate"].replace("{id}", job_id)):
        [content] = agent.ask("resources/read", uri=uri)["contents"]
        assert content["mimeType"] == "application/json"
        assert "hunter2" not in content["text"]
    assert json.loads(content["text"])["id"] == job_id
    assert agent.ask("resources/read", uri="holdfast://job/nothing")["code"] == -32002


def test_secrets_stay_here_wherever_they_turn_up(shell: Shell, agent: Agent) -> None:
    words = ["api_key=sk-live-12345", 'login:={"password": "hunter2!", "user": "ann"}', "url=x"]
    job_id = shell("submit", "t", "-q", "q", *words).strip()

    async def fail(connection: Connection) -> None:
        hand = Hand(connection)
        trace = "call('sk-live-12345') pg://u:geheim@db/x token=abcdef123 Authorization: Bearer zzz999"
        body = {"type": "E", "message": "401 for sk-live-12345 and hunter2!", "traceback": trace}
        await hand.finish(await hand.one(), "reject", body)

    shell.ask(fail)
    seen = json.dumps([agent.tool("show_job", id=job_id), agent.tool("list_jobs")])
    for secret in ("sk-live-12345", "hunter2!", "geheim", "abcdef123", "zzz999"):
        assert secret not in seen
    assert '"user": "ann"' in seen
    assert "cannot be searched for" in agent.tool("list_jobs", search="args.login.password:hunter2!")


def test_what_a_tool_refuses_is_told_and_the_session_goes_on(agent: Agent) -> None:
    assert "There is no job" in agent.tool("show_job", id="00000000-0000-0000-0000-000000000007")
    assert "not the id of a job" in agent.tool("why", id="'; drop table jobs")
    assert "nonsense" in agent.tool("list_jobs", search="nonsense:1")
    assert "do not fit" in agent.tool("list_jobs", limit=10_000)
    assert "do not fit" in agent.tool("list_jobs", surprise=1)
    assert "do not fit" in agent.tool("show_job")
    for forbidden in ("retry_job", "cancel_job", "__class__", ""):
        assert agent.ask("tools/call", name=forbidden)["code"] == -32602
    assert agent.ask("ping") == {}


BREACHES = [
    (b"{", -32700),
    (b"\xff\xfe", -32700),
    (b"[" * 100_000, -32700),
    (b"5", -32600),
    (b"[]", -32600),
    (b'{"id": 1, "method": "ping"}', -32600),
    (b'{"jsonrpc": "2.0", "id": 1, "method": 5}', -32600),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "prompts/list"}', -32601),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "resources/read"}', -32002),
    (
        b'{"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": "file:///etc/passwd"}}',
        -32002,
    ),
    (
        b'{"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": "holdfast://list_jobs"}}',
        -32002,
    ),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": [1]}', -32602),
    (b"x" * 1_000_500, -32600),
]


def test_what_breaks_the_protocol(agent: Agent) -> None:
    for line, code in BREACHES:
        assert agent.raw(line)["error"]["code"] == code, line[:100]
        assert agent.ask("ping") == {}


def test_several_at_once_and_an_unknown_version(agent: Agent) -> None:
    batch = [{"jsonrpc": "2.0", "id": n, "method": "ping"} for n in ("a", "b")]
    answers = agent.raw(json.dumps([*batch, {"jsonrpc": "2.0", "method": "notifications/x"}]).encode())
    assert [answer["id"] for answer in answers] == ["a", "b"]
    assert agent.ask("initialize", protocolVersion="1999-01-01")["protocolVersion"] == "2025-11-25"


def test_acting_only_where_allowed(shell: Shell, url: Secret) -> None:
    job_id = shell("submit", "t", "-q", "default").strip()
    agent = Agent(url, "--allow", "cancel,retry")
    assert "do not fit" in agent.tool("cancel_job", id=job_id)
    assert agent.tool("cancel_job", id=job_id, reason="asked to")["status"] == "cancelled"
    assert agent.tool("retry_job", id=job_id)["restarted"] == 1
    assert agent.close() == 0
    assert "choose from retry, cancel" in shell("mcp", "--allow", "drop", code=2)

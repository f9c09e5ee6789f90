"""`holdfast mcp` as a real process: every tool, and every violation of the protocol."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator
from typing import Any

import pytest
from manual_worker import ManualWorker
from shell import Captured, Shell

from holdfast.engine import jobs, task_types
from holdfast.engine.connection import Connection
from holdfast.settings import Secret


class McpClient:
    """Sends JSON-RPC requests to a process, one per line."""

    def __init__(self, url: Secret, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "--database-url", url.reveal(), "mcp", *options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.last_id = 0

    def send_line(self, line: bytes) -> Any:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def request(self, method: str, **params: Any) -> Any:
        self.last_id += 1
        response = self.send_line(
            json.dumps({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params}).encode()
        )
        assert (response["jsonrpc"], response["id"]) == ("2.0", self.last_id)
        return response["result"] if "result" in response else response["error"]

    def call_tool(self, name: str, **arguments: Any) -> Any:
        result = self.request("tools/call", name=name, arguments=arguments)
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
def agent(url: Secret) -> Generator[McpClient]:
    agent = McpClient(url)
    yield agent
    assert agent.close() == 0


def test_session_with_every_tool(shell: Shell, agent: McpClient) -> None:
    hello = agent.request(
        "initialize", protocolVersion="2025-03-26", capabilities={}, clientInfo={"name": "t"}
    )
    assert hello["protocolVersion"] == "2025-03-26"
    assert hello["serverInfo"]["name"] == "holdfast"
    assert agent.process.stdin
    agent.process.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
    tools = {tool["name"]: tool for tool in agent.request("tools/list")["tools"]}
    assert set(tools) == {
        "list_jobs", "get_job", "explain_job", "list_queues", "list_errors", "list_workers",
    }  # fmt: skip
    assert all(tool["annotations"]["readOnlyHint"] for tool in tools.values())
    assert tools["get_job"]["inputSchema"]["required"] == ["id"]
    job_id = shell(
        "submit", "shoot", "-q", "default", "url=x", "password=hunter2", "--label=note=token"
    ).strip()
    [listed] = agent.call_tool("list_jobs", search="task:shoot")["jobs"]
    assert listed["id"] == job_id
    assert listed["params"] == {"url": "x", "password": "•••"}
    shown = agent.call_tool("get_job", id=job_id[:18])
    assert shown["status"] == "queued"
    assert "hunter2" not in json.dumps(shown)
    assert agent.call_tool("explain_job", id=job_id)["reasons"][0]["reason"] == "no_worker"
    assert agent.call_tool("list_queues")["queues"][0]["queue"] == "default"
    assert agent.call_tool("list_errors") == {"causes": []}
    assert agent.call_tool("list_workers") == {"workers": []}
    assert agent.request("ping") == {}
    resources = [each["uri"] for each in agent.request("resources/list")["resources"]]
    assert resources == ["holdfast://queues", "holdfast://workers", "holdfast://errors"]
    [template] = agent.request("resources/templates/list")["resourceTemplates"]
    for uri in (*resources, template["uriTemplate"].replace("{id}", job_id)):
        [content] = agent.request("resources/read", uri=uri)["contents"]
        assert content["mimeType"] == "application/json"
        assert "hunter2" not in content["text"]
    assert json.loads(content["text"])["id"] == job_id
    assert agent.request("resources/read", uri="holdfast://job/nothing")["code"] == -32002


def test_secrets_are_masked_everywhere(shell: Shell, agent: McpClient) -> None:
    words = ["api_key=sk-live-12345", 'login:={"password": "hunter2!", "user": "ann"}', "url=x"]
    job_id = shell("submit", "t", "-q", "q", *words).strip()

    async def fail(connection: Connection) -> None:
        manual_worker = ManualWorker(connection)
        trace = "call('sk-live-12345') pg://u:geheim@db/x token=abcdef123 Authorization: Bearer zzz999"
        body = {"type": "E", "message": "401 for sk-live-12345 and hunter2!", "traceback": trace}
        await manual_worker.finish_task(await manual_worker.claim_one_task(), "reject", body)

    shell.query(fail)
    seen = json.dumps([agent.call_tool("get_job", id=job_id), agent.call_tool("list_jobs")])
    for secret in ("sk-live-12345", "hunter2!", "geheim", "abcdef123", "zzz999"):
        assert secret not in seen
    assert '"user": "ann"' in seen
    assert "cannot be searched" in agent.call_tool("list_jobs", search="args.login.password:hunter2!")


def test_error_of_a_tool_is_a_result_and_the_session_goes_on(agent: McpClient) -> None:
    assert "does not exist" in agent.call_tool("get_job", id="00000000-0000-0000-0000-000000000007")
    assert "is not a job id" in agent.call_tool("explain_job", id="'; drop table jobs")
    assert "nonsense" in agent.call_tool("list_jobs", search="nonsense:1")
    assert "arguments are invalid" in agent.call_tool("list_jobs", limit=10_000)
    assert "arguments are invalid" in agent.call_tool("list_jobs", surprise=1)
    assert "arguments are invalid" in agent.call_tool("get_job")
    for forbidden in ("retry_job", "cancel_job", "__class__", ""):
        assert agent.request("tools/call", name=forbidden)["code"] == -32602
    assert agent.request("ping") == {}


PROTOCOL_VIOLATIONS = [
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


def test_protocol_violation_is_a_json_rpc_error(agent: McpClient) -> None:
    for line, code in PROTOCOL_VIOLATIONS:
        assert agent.send_line(line)["error"]["code"] == code, line[:100]
        assert agent.request("ping") == {}


def test_batch_of_requests_and_unknown_protocol_version(agent: McpClient) -> None:
    batch = [{"jsonrpc": "2.0", "id": n, "method": "ping"} for n in ("a", "b")]
    answers = agent.send_line(json.dumps([*batch, {"jsonrpc": "2.0", "method": "notifications/x"}]).encode())
    assert [answer["id"] for answer in answers] == ["a", "b"]
    assert agent.request("initialize", protocolVersion="1999-01-01")["protocolVersion"] == "2025-11-25"


def test_actions_need_allow(shell: Shell, url: Secret) -> None:
    job_id = shell("submit", "t", "-q", "default").strip()
    agent = McpClient(url, "--allow", "cancel,retry")
    assert "arguments are invalid" in agent.call_tool("cancel_job", id=job_id)
    assert agent.call_tool("cancel_job", id=job_id, reason="asked to")["status"] == "cancelled"
    assert agent.call_tool("retry_job", id=job_id)["restarted"] == 1
    assert agent.close() == 0
    assert "choose from retry, cancel" in shell("mcp", "--allow", "drop", code=2)


async def test_secrets_that_only_a_schema_marks_are_masked(agent: McpClient, conn: Connection) -> None:
    secret = "marlin-by-schema"
    schema = {"type": "object", "properties": {"nickname": {"type": "string", "writeOnly": True}}}
    await task_types.register_task_types(conn, "w", [{"name": "t", "queue": "q", "schema": schema}])
    submitted = await jobs.submit(
        conn, {"type": "t", "queue": "q", "attempts": 1, "args": {"nickname": secret}}
    )
    worker = ManualWorker(conn)
    task = await worker.claim_one_task()
    error = {"type": "Leak", "message": f"no {secret} here", "fingerprint": "Leak"}
    await worker.finish_task(task, "fail", error)
    job_id = str(submitted.id)
    results = [
        agent.call_tool("list_jobs"),
        agent.call_tool("get_job", id=job_id),
        agent.call_tool("explain_job", id=job_id),
        agent.call_tool("list_errors"),
    ]
    assert secret not in json.dumps(results)
    assert results[3]["causes"][0]["message"] == "no ••• here"
    assert "cannot be searched" in agent.call_tool("list_jobs", search=f"args.nickname:{secret}")
    assert agent.call_tool("list_jobs", search=secret)["jobs"] == [], "a search confirms no guess"
    assert [job["id"] for job in agent.call_tool("list_jobs", search="error:Leak")["jobs"]] == [job_id]

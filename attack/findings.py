"""What an attack reports: how many checks it made, and each finding with how to repeat it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

MAX_BODY_CHARS_IN_FINDING = 300


@dataclass(frozen=True)
class Finding:
    """Something that an attacker achieved, and the request or statement that achieves it again."""

    problem: str
    repeat: str
    who: str = ""


@dataclass
class AttackLog:
    """The checks and the findings of one attack."""

    checks: int = 0
    findings: list[Finding] = field(default_factory=list[Finding])

    def check(self, passed: bool, problem: str, repeat: str = "", who: str = "") -> bool:
        """Count a check, and record a finding unless it passed. Return whether it passed."""
        self.checks += 1
        if not passed:
            self.findings.append(Finding(problem, repeat, who))
        return passed

    def format_findings(self) -> list[str]:
        """Format the findings for people. The same problem of several callers is one entry."""
        groups: dict[str, list[Finding]] = {}
        for finding in self.findings:
            groups.setdefault(finding.problem, []).append(finding)
        return [
            f"{problem}\n    by: {', '.join(sorted({each.who for each in group}))}"
            f"\n    repeat: {group[0].repeat}"
            for problem, group in groups.items()
        ]

    def check_response(self, passed: bool, response: httpx.Response, who: str, problem: str) -> bool:
        """Count a check of a response. A finding has the request as a curl command."""
        shown = response.text[:MAX_BODY_CHARS_IN_FINDING] if not passed else ""
        return self.check(
            passed,
            f"{response.request.method} {response.request.url.path} -> {response.status_code}: "
            f"{problem}: {shown}",
            format_curl(response.request, who) if not passed else "",
            who,
        )


def format_curl(request: httpx.Request, who: str) -> str:
    """Format a request as a curl command. Credentials are named, because each run makes new ones."""
    words = ["curl", "-X", request.method, str(request.url)]
    for name, value in request.headers.items():
        if name in ("authorization", "apikey", "cookie"):
            words += ["-H", f"{name}: <{who}>"]
        elif name not in ("host", "accept", "accept-encoding", "connection", "user-agent", "content-length"):
            words += ["-H", f"{name}: {value}"]
    body = _read_body(request)
    if body:
        words += ["--data", body[:MAX_BODY_CHARS_IN_FINDING]]
    return shlex.join(words)


def _read_body(request: httpx.Request) -> str:
    try:
        return request.content.decode("utf-8", "replace")
    except httpx.RequestNotRead:
        return "<streamed>"


def format_statement(role: str, claims: Mapping[str, Any] | None, statement: str) -> str:
    """Format a SQL statement with its role and claims, to paste into psql."""
    lines = ["begin;"]
    if claims is not None:
        lines.append(f"select set_config('request.jwt.claims', '{json.dumps(claims)}', true);")
    return " ".join([*lines, f"set local role {role};", f"{statement};", "rollback;"])

"""Build the page of docs/reference with every SQL function that a role may call."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from holdfast.engine.rpc_functions import RPC_FUNCTIONS

FUNCTIONS_DIR = Path(__file__).resolve().parent.parent / "src" / "holdfast" / "engine" / "functions"
ROLE_TITLES = {"authenticated": "users", "service_role": "services", "holdfast_worker": "workers"}
GRANT_PATTERN = re.compile(r"call holdfast\.grant_execute\(\s*'(\w+)',(.*?)\);", re.DOTALL)
FUNCTION_PATTERN = re.compile(
    r"((?:^--[^\n]*\n)*)^create or replace (?:function|procedure) holdfast\.(\w+)\((.*?)\)\s*(?:returns|language|as)",
    re.DOTALL | re.MULTILINE,
)
DEFAULT_PATTERN = re.compile(r"\s+default\s+('[^']*'|[^,]+)", re.IGNORECASE)


def build_sql_functions_page(generated_note: str) -> str:
    """Return the page: one table per folder of functions, with parameters, roles and the first sentence."""
    roles = _read_granted_roles()
    lines = [
        "# SQL: every function that a role may call",
        generated_note,
        "The [functions for applications](sql.md) are described with their arguments and answers on a page of their own, and keep",
        "their names and parameters within a major version. All other functions here are called by Holdfast's own client, workers and",
        "server, which connect with these roles. They may change with any version, together with the code that calls them. A function",
        "that is not on this page can be called by the owner of the schema only.",
        "",
        "**users**: role `authenticated`, for their own rows. **services**: role `service_role`. **workers**: members of `holdfast_worker`.",
        "The rights of a role hold whichever way a call comes: `/rest/v1/rpc`, PostgREST or SQL.",
        "",
        "The column **by RPC** is for `/rest/v1/rpc`. It names the scope that a service key needs besides `rpc`, which is that of the HTTP route",
        "that does the same, and the action that a change writes to the audit log. `-` means that nobody can call the function by RPC.",
        "What users read is what the HTTP API shows them: no tracebacks, no messages of internal errors, no names of workers, no log lines,",
        "no arguments of tasks in a graph and no keys of the object store.",
    ]
    for folder in sorted(path for path in FUNCTIONS_DIR.iterdir() if path.is_dir()):
        rows = _build_rows(folder, roles)
        if rows:
            lines += [
                "",
                f"## {folder.name}",
                "",
                "| function | who | by RPC | what it does |",
                "|---|---|---|---|",
                *rows,
            ]
    return "\n".join(lines) + "\n"


def _read_granted_roles() -> dict[str, set[str]]:
    roles: dict[str, set[str]] = defaultdict(set)
    for path in FUNCTIONS_DIR.rglob("*.sql"):
        for role, names in GRANT_PATTERN.findall(path.read_text()):
            if role in ROLE_TITLES:
                for name in re.findall(r"'(\w+)'", names):
                    roles[name].add(ROLE_TITLES[role])
    return roles


def _build_rows(folder: Path, roles: dict[str, set[str]]) -> list[str]:
    rows: dict[str, str] = {}
    for path in sorted(folder.rglob("*.sql")):
        for comment, name, parameters in FUNCTION_PATTERN.findall(path.read_text()):
            if name in roles and name not in rows:
                who = ", ".join(title for title in ROLE_TITLES.values() if title in roles[name])
                call = f"{name}({_format_parameters(parameters)})"
                rows[name] = f"| `{call}` | {who} | {_describe_rpc(name)} | {_get_first_sentence(comment)} |"
    return [rows[name] for name in sorted(rows)]


def _describe_rpc(name: str) -> str:
    """Return the scope and the audit action of a function that can be called by RPC, else `-`."""
    rule = RPC_FUNCTIONS.get(name)
    if rule is None:
        return "-"
    return f"`{rule.scope}`" if rule.action is None else f"`{rule.scope}`, audited as `{rule.action}`"


def _format_parameters(parameters: str) -> str:
    """Return the names of the parameters, without their types; `out` parameters are left out."""
    plain = DEFAULT_PATTERN.sub("", re.sub(r"--[^\n]*", "", parameters))
    names = [part.split()[0] for part in plain.split(",") if part.strip()]
    return ", ".join(name for name in names if name.startswith("p_"))


def _get_first_sentence(comment: str) -> str:
    text = " ".join(line.removeprefix("--").strip() for line in comment.splitlines())
    sentence = re.split(r"(?<=[.:])\s", text.strip(), maxsplit=1)[0]
    return sentence.rstrip(":").replace("|", "\\|")

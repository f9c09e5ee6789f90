"""Fail when the code uses a retired name or phrase. docs/glossary.md lists the words to use instead.

Names are checked as identifiers of Python and SQL, file names included. Phrases are checked in every text that a
reader sees: docstrings, comments, messages, help texts, templates, SQL comments and documentation.
"""

from __future__ import annotations

import io
import keyword
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODE_FOLDERS = ("src", "tests", "scripts", "examples", "bench", "campaign")

# Names that no reader of another job queue could guess, and what replaced them.
RETIRED_NAMES = {
    "alike": "submit_uniform",
    "asked": "the noun: request, options, queue_names",
    "Beaten": "HeartbeatResponse",
    "bell": "wakeup",
    "bells": "wakeups",
    "death_note": "record_crash",
    "Deed": "Action",
    "Desk": "Gateway",
    "DatabaseDesk": "DatabaseGateway",
    "PipeDesk": "PipeGateway",
    "desk": "gateway",
    "did": "the noun: result, changed_rows",
    "doomed": "marked_for_deletion",
    "Entrance": "login",
    "entrance": "login",
    "exhibition": "what the fixture provides",
    "figures": "metrics or stats",
    "found": "the noun: job, rows, match",
    "gallery": "what the fixture provides",
    "gated_press": "what the fixture provides",
    "Given": "Arguments",
    "given": "the noun: arguments, options, value",
    "glance": "overview",
    "Happening": "Event",
    "Heard": "Notification",
    "heard": "the noun: notification, events",
    "Held": "LeasedMessage",
    "Hiding": "Redaction",
    "IN_A_ROW": "MAX_CONSECUTIVE_ROUND_TRIPS",
    "LATENCY": "MAX_REQUEST_LATENCY_S",
    "Made": "Created...",
    "made": "the noun: job, page, created",
    "Misfit": "ValidationError",
    "misfit": "validate_...",
    "most": "max_rows, limit",
    "MOST_AT_ONCE": "MAX_CLAIM_BATCH",
    "nursery": "what the process provides",
    "partly": "truncated",
    "Patient": "SuspectTask",
    "Press": "Renderer or Button",
    "pulse": "change_token",
    "Remade": "RegeneratedFile",
    "rung": "notified",
    "said": "the noun: options, response, text",
    "Say": "SubmitOptions",
    "say": "options",
    "Seat": "Subscriber",
    "Sight": "View",
    "sights": "views",
    "summed": "totals",
    "Taker": "TaskSink",
    "Telling": "Notification",
    "tend": "run_maintenance",
    "Told": "the noun: Response",
    "told": "the noun: response, notified, reason",
    "Trip": "RoundTrip",
    "trouble": "problem",
    "troubles": "problems",
    "Verdict": "Outcome",
    "verdict": "outcome",
    "Wanted": "Request",
    "wanted": "the noun: requested, options",
    "WORTH_HALVING": "MIN_BATCH_TO_SPLIT",
}
RETIRED_PATTERNS = {
    r"bury_\w+": "move_to_dead_letters",
    r"doom_\w+": "mark_for_deletion",
    r"hear_\w+": "wait_for_...",
    r"misfit_\w+": "validate_...",
    r"tell_\w+": "emit_..._event, notify_...",
    r"\w+Say": "...Options",
    r"\w+Desk": "...Gateway",
}
RETIRED_PHRASES = (
    r"\bat most so (many|long|much)\b",
    r"\b(so long|so many|so often) at most\b",
    r"\bno row speaks of\b",
    r"\b(has|have) told of\b",
    r"\b(is|are|was|were) told of\b",
    r"\bnobody (has )?told\b",
    r"\bwas overheard\b",
    r"\bof no interest\b",
    r"\bthe other side says\b",
    r"\bis mended\b",
    r"\basked twice\b",
    r"\bwithout being asked\b",
    r"\bis no address\b",
    r"\bready since \d",
    r"\bwait so long\b",
    r"\bwas not to be had\b",
    r"\bspeaks? of\b",
    r"\bmake up for\b",
    r"\bthose that know\b",
    r"\bwhatever became of\b",
)

NAME_PATTERN = re.compile("|".join(f"(?P<p{n}>{p})" for n, p in enumerate(RETIRED_PATTERNS)))
PHRASE_PATTERN = re.compile("|".join(RETIRED_PHRASES), re.IGNORECASE)
OTHER_LIBRARY_LINE = re.compile(r"hypothesis|^\s*@.*\bgiven\(")  # names that another library chose
SQL_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]*")
SQL_KEYWORDS = {"found"}  # a variable that PL/pgSQL defines
SQL_QUOTED_TEXT = re.compile(r"--[^\n]*|'[^']*'")


def list_files(*patterns: str) -> list[Path]:
    output = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [path for name in output.splitlines() if (path := ROOT / name).is_file()]


def find_replacement(name: str) -> str | None:
    """Return what to write instead of a retired name, or None when the name is fine."""
    if name in RETIRED_NAMES:
        return RETIRED_NAMES[name]
    match = NAME_PATTERN.fullmatch(name.lstrip("_"))
    if match is None:
        return None
    return list(RETIRED_PATTERNS.values())[int(str(match.lastgroup)[1:])]


def iterate_python_names(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        from_other_library = OTHER_LIBRARY_LINE.search(token.line) is not None
        if token.type == tokenize.NAME and not keyword.iskeyword(token.string) and not from_other_library:
            yield token.start[0], token.string


def iterate_sql_names(text: str) -> Iterator[tuple[int, str]]:
    code = SQL_QUOTED_TEXT.sub("", text)
    for number, line in enumerate(code.splitlines(), 1):
        for match in SQL_IDENTIFIER.finditer(line):
            if match[0] not in SQL_KEYWORDS:
                yield number, match[0]


def check_names() -> Iterator[str]:
    for path in list_files(*(f"{folder}/**" for folder in CODE_FOLDERS)):
        place = path.relative_to(ROOT)
        if path == Path(__file__).resolve():
            continue
        if (replacement := find_replacement(path.stem)) is not None:
            yield f"{place}: retired file name; use {replacement}"
        if path.suffix not in {".py", ".sql"}:
            continue
        text = path.read_text(encoding="utf-8")
        names = iterate_python_names(text) if path.suffix == ".py" else iterate_sql_names(text)
        for line, name in names:
            if (replacement := find_replacement(name)) is not None:
                yield f"{place}:{line}: retired name {name}; use {replacement}"


def check_phrases() -> Iterator[str]:
    for path in list_files("src/**", "docs/**", "examples/**", "*.md"):
        if path.suffix not in {".py", ".sql", ".md", ".html", ".js", ".typ"}:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if match := PHRASE_PATTERN.search(line):
                yield f"{path.relative_to(ROOT)}:{number}: retired phrase {match[0]!r}"


def main() -> int:
    breaches = [*check_names(), *check_phrases()]
    for breach in breaches:
        print(breach)
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())

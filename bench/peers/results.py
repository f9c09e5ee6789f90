"""What was found, kept from run to run: a part, or a peer of it, can be measured anew without the others."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from bench.peers.peers import PEERS, ROOT

Value = float | str
Measurements = dict[str, Value]


@dataclass(frozen=True)
class Stamp:
    """What a figure was taken with; figures of one stamp were taken in one run."""

    when: str
    commit: str
    load: float
    machine: str
    server: str

    def __str__(self) -> str:
        return (
            f"{self.when}. {self.machine}. {self.server}. Commit {self.commit}."
            f" Load before it began: {self.load:.1f}."
        )


@dataclass
class Outcome:
    """Of one peer in one part; `lost` says why some of it is missing."""

    stamp: Stamp
    measurements: Measurements = field(default_factory=dict)
    lost: str = ""
    seconds: float = 0.0


Results = dict[str, dict[str, Outcome]]


def stamp(server: str, commit: str) -> Stamp:
    return Stamp(
        when=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        commit=commit,
        load=os.getloadavg()[0],
        machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores,"
        f" Python {platform.python_version()}",
        server=server,
    )


def commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def load(place: Path) -> Results:
    if not place.exists():
        return {}
    stored = json.loads(place.read_text(encoding="utf-8"))
    return {
        part: {name: Outcome(**{**kept, "stamp": Stamp(**kept["stamp"])}) for name, kept in peers.items()}
        for part, peers in stored.items()
    }


def save(place: Path, results: Results) -> None:
    """Whole or not at all: it is written after each peer, and a run may be broken off."""
    stored = {part: {name: asdict(kept) for name, kept in peers.items()} for part, peers in results.items()}
    place.parent.mkdir(parents=True, exist_ok=True)
    aside = place.with_suffix(".new")
    aside.write_text(json.dumps(stored, indent=1), encoding="utf-8")
    aside.replace(place)


def put(results: Results, part: str, name: str, outcome: Outcome) -> None:
    """In place of what was known of this peer in this part; peers stay in their order."""
    peers = {**results.get(part, {}), name: outcome}
    results[part] = {each: peers[each] for each in PEERS if each in peers}

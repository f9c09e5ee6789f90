"""Which shard a submit goes to. Everything here is calculated from the request and the states of the shards.

Work that must meet on one database has a routing key: its limit key, else its owner, else its idempotency key
or unique key. Rendezvous hashing gives a key to the shard with the highest hash of number and key, so a new
shard takes its share of the keys from all others, and no key moves between the old ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from holdfast.engine.shards import ShardState


def get_routing_key(request: Mapping[str, Any]) -> str | None:
    """Return what a submit request is routed by, or None if it may go to any shard."""
    for name in ("limit_key", "owner", "key", "unique_key"):
        if request.get(name):
            return f"{name}:{request[name]}"
    return None


def choose_shard(key: str, numbers: Iterable[int]) -> int:
    """Return the shard with the highest hash of its number and the key."""
    return max(numbers, key=lambda number: _hash_pair(number, key))


def list_candidates(key: str, states: Collection[ShardState]) -> list[int]:
    """Return the shard of a key, followed by the shards where an older job with this key may be.

    Those are the shards that the key had before a shard joined, or before its shard was drained.
    """
    active = [state.number for state in states if not state.draining]
    candidates = [choose_shard(key, active)] if active else []
    candidates += [
        choose_shard(key, [state.number for state in states if state.joined <= joined])
        for joined in sorted({state.joined for state in states}, reverse=True)
    ]
    return list(dict.fromkeys(candidates))


def _hash_pair(number: int, key: str) -> bytes:
    text = f"{number}:{key}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8).digest()

"""`client.blocking` has the methods of the client, with the same parameters and the matching return types."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.client import blocking
from holdfast.client.async_client import AsyncClient
from holdfast.client.batches import Batches, BatchHandle
from holdfast.client.blocking import batches, files, handles, limits, queues, schedules
from holdfast.client.files import Files
from holdfast.client.handles import JobHandle
from holdfast.client.limits import Limits
from holdfast.client.messages.queues import Queues
from holdfast.client.schedules import Schedules

ROOT = Path(__file__).resolve().parents[2]
PAIRS: list[tuple[type, type]] = [
    (AsyncClient, blocking.BlockingClient),
    (JobHandle, handles.BlockingJobHandle),
    (BatchHandle, batches.BlockingBatchHandle),
    (Batches, batches.BlockingBatches),
    (Files, files.BlockingFiles),
    (Limits, limits.BlockingLimits),
    (Schedules, schedules.BlockingSchedules),
    (Queues, queues.BlockingQueues),
]
# They return objects of other libraries that need an event loop.
# `client.shard(2).blocking` is the blocking client of a shard.
ONLY_ASYNC = {"connection", "transaction", "store", "shard", "shard_for"}
RETURN_TYPES = {
    r"\bJobHandle\b": "BlockingJobHandle",
    r"\b(PendingBatch|BatchHandle)\b": "BlockingBatchHandle",
    r"\bAsyncIterator\b": "Iterator",
    r"\bAsyncGenerator\[\w+\]": "AbstractContextManager[BlockingFileReader]",
}


def list_public_members(cls: type) -> dict[str, Any]:
    return {name: member for name, member in inspect.getmembers(cls) if not name.startswith("_")}


def expect_return_type(annotation: str) -> str:
    for pattern, name in RETURN_TYPES.items():
        annotation = re.sub(pattern, name, annotation)
    return annotation


@pytest.mark.parametrize(("asynchronous", "plain"), PAIRS, ids=lambda cls: cls.__name__)
def test_blocking_signatures_match_the_async_signatures(asynchronous: type, plain: type) -> None:
    expected, actual = list_public_members(asynchronous), list_public_members(plain)
    assert expected.keys() - ONLY_ASYNC == actual.keys()
    for name, member in actual.items():
        if isinstance(member, property):
            assert isinstance(expected[name], property)
            continue
        ours, theirs = inspect.signature(member), inspect.signature(expected[name])
        assert ours.parameters == theirs.parameters, name
        assert ours.return_annotation == expect_return_type(theirs.return_annotation), name
        assert not inspect.iscoroutinefunction(member), name
        assert member.__doc__, name


def test_the_generated_files_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/generate_blocking.py", "--check"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr

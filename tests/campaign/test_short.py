"""The campaign in small doses, each run in an environment of its own."""

from __future__ import annotations

import random

import pytest

from campaign.__main__ import RUNS, execute_run

# The others, and larger doses, are for `make campaign-short` and `make campaign`.
IN_CI = ("crashes", "kills", "limits")
SEED = random.SystemRandom().randrange(1 << 31)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", IN_CI)
async def test_every_promise_is_kept(name: str) -> None:
    result = await execute_run(RUNS[name], "tiny", SEED, slack_s=20.0)  # whatever else the machine does
    assert not result["broken"], f"python -m campaign {name} --seed {SEED}: {result['broken'][:5]}"
    assert not result["tracebacks in worker logs"]

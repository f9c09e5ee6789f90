"""Tests that execute fault runs in small doses, each in its own environment."""

from __future__ import annotations

import random

import pytest

from campaign.__main__ import RUNS_BY_NAME, execute_run

# Other runs and larger doses are in `make campaign-short` and `make campaign`.
RUNS_IN_CI = ("crashes", "kills", "limits")
RUN_SEED = random.SystemRandom().randrange(1 << 31)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", RUNS_IN_CI)
async def test_every_promise_is_kept(name: str) -> None:
    result = await execute_run(
        RUNS_BY_NAME[name], "tiny", RUN_SEED, slack_s=20.0
    )  # generous, because the machine may be busy
    assert not result["broken"], f"python -m campaign {name} --seed {RUN_SEED}: {result['broken'][:5]}"
    assert not result["tracebacks in worker logs"]

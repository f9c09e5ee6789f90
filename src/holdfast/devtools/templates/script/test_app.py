"""pip install 'holdfast[testing]' && pytest: the real engine on a PostgreSQL of its own."""

from datetime import timedelta

import pytest

from app import count_words
from holdfast import TaskFailedError
from holdfast.testing import Holdfast


async def test_words_are_counted(hf: Holdfast) -> None:
    assert await hf.run(count_words("to be or not to be")) == {"to": 2, "be": 2, "or": 1, "not": 1}


async def test_a_job_survives_a_killed_worker_at_any_await(hf: Holdfast) -> None:
    await hf.replay(count_words("to be"))


async def test_a_wrong_argument_fails_at_once(hf: Holdfast) -> None:
    job = await hf.client.submit(count_words(7))  # type: ignore[arg-type]
    await hf.drain(until=timedelta(hours=1))
    with pytest.raises(TaskFailedError):
        await job.result()

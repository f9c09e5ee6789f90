"""pip install 'holdfast[dev,testing]' && pytest: the real engine on a PostgreSQL of its own."""

from app import build_pipeline
from holdfast.testing import Holdfast


async def test_the_pipeline_saves_a_chart(hf: Holdfast) -> None:
    job = await hf.client.submit(build_pipeline({"a": "to be", "b": "or not to be"}))
    result = await hf.drain()
    assert [attempt.task for attempt in result.attempts] == ["count_words", "count_words", "add_up", "draw"]
    [chart] = await hf.client.files.list(job=job.id)
    assert b">be</text>" in await hf.client.files.read(chart)


async def test_the_counts_of_all_texts_are_added_up(hf: Holdfast) -> None:
    job = await hf.client.submit(build_pipeline({"a": "to be", "b": "to do"}))
    await hf.drain()
    outputs = {task.name: task.output for task in (await job.get()).tasks}
    assert outputs["add_up"] == {"to": 2, "be": 1, "do": 1}

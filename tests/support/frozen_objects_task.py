"""A task that tells how many objects of its process garbage collections skip."""

from __future__ import annotations

import gc

from holdfast import task


@task(queue="collections")
async def count_frozen_objects() -> int:
    return gc.get_freeze_count()

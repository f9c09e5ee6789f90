"""Document export and reports inside an application of your own: `uvicorn examples.systems_app:app`."""

from __future__ import annotations

import asyncio

from holdfast import Client
from holdfast.server import create_app
from holdfast.systems import exports, mount, reports

app = create_app(**mount(exports.mount(exports.ExportLimits(exports_per_day=500)), reports))


async def prepare() -> None:
    """Install the tables, views, functions and limits. Run it once, and after every upgrade."""
    async with Client() as client, client.connection() as connection:
        await exports.install(connection)
        await reports.install(connection)


if __name__ == "__main__":
    asyncio.run(prepare())

"""Erase everything of a user: see docs/operate/erasure.md. `python examples/erase_account.py USER_ID`"""

from holdfast import Client

client = Client()


async def close_account(user_id: str) -> None:
    erasure = await client.erase_owner(user_id, by="support")
    print(erasure.finished_at, erasure.deleted)  # {'files': 12, 'jobs': 40, 'public.bookmarks': 7, ...}


if __name__ == "__main__":
    import asyncio
    import sys

    asyncio.run(close_account(sys.argv[1]))

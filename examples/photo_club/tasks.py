"""The work of the club: mails, a nightly newsletter, and albums that are made by a graph of tasks.

holdfast dev photo_club.tasks
"""

from __future__ import annotations

import io
import zipfile
from datetime import timedelta

from holdfast import Client, Ctx, Graph, Reject, schedule, task

client = Client()  # uses DATABASE_URL, or the database of `holdfast dev`; connects at first use

MAILS_PER_DOMAIN = 2  # how many mails to one provider may be under way at once


async def deliver_mail(to: str, text: str, *, key: str) -> None:
    """Send a mail. Replace this with your provider, which needs the key to ignore repeated requests."""
    print(f"to {to}: {text} ({key})")


@task(queue="mail", retries=5, timeout=60)
async def welcome(ctx: Ctx, email: str) -> None:
    """Greet a new member. The row changes in the transaction that completes the task."""
    await ctx.step("mail", deliver_mail, email, "Welcome!", key=ctx.idempotency_key)
    async with client.transaction() as connection:
        await connection.execute("update members set welcomed_at = now() where email = $1", email)
        await ctx.complete(connection)


@task(queue="mail", retries=5, timeout=60)
async def send_newsletter(ctx: Ctx, email: str, text: str) -> None:
    await deliver_mail(email, text, key=ctx.idempotency_key)


@schedule("0 3 * * *", timezone="Europe/Madrid", unique=True)
@task(queue="mail")
async def nightly_newsletter(ctx: Ctx) -> int:
    """Submit one job for each member. Run again, it submits none twice, because each job has a key."""
    async with client.connection() as connection:
        members = [row["email"] for row in await connection.fetch("select email from members order by 1")]
        count = await connection.fetchval("select count(*) from photos")
    text = f"{count} photos in the club"
    await client.submit_many(
        send_newsletter(email, text).options(
            key=f"newsletter:{ctx.task_id}:{email}", limit_key=email.partition("@")[2]
        )
        for email in members
    )
    return len(members)


@task(queue="albums", retries=2, timeout=120)
async def develop(ctx: Ctx, title: str) -> str:
    """Make one page of an album."""
    ctx.progress(0, 2, phase="develop", message=title)
    page = f"*** {title} ***"
    await ctx.report(2, 2, phase="develop", message=title)
    return page


@task(queue="albums")
async def bind(ctx: Ctx, pages: list[str]) -> int:
    """Put all pages into one file, which the member downloads with a signed link."""
    if not pages:
        raise Reject("An album needs at least one photo.")
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for number, page in enumerate(pages, 1):
            archive.writestr(f"page {number}.txt", page)
    file = await ctx.save("album.zip", content.getvalue(), "application/zip", ttl=timedelta(days=7))
    return file.size


def album(titles: list[str]) -> Graph:
    """Develop all photos at the same time, then bind them."""
    graph = Graph("album")
    pages = [graph.add(develop(title), name=f"photo {number}") for number, title in enumerate(titles, 1)]
    graph.add(bind([page.result for page in pages]))
    return graph

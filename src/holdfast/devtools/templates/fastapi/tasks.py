"""The tasks: functions that run in workers. They do not depend on the web application."""

from __future__ import annotations

from holdfast import Client, Ctx, Reject, task

client = Client()  # uses DATABASE_URL, or the database in .holdfast; connects at first use


@task(queue="mail", retries=5, timeout=60)
async def welcome_member(ctx: Ctx, member: int) -> str:
    """Send a mail to a new member, and note it in the transaction that completes the task."""
    async with client.transaction() as connection:
        email = await connection.fetchval("select email from members where id = $1 for update", member)
        if email is None:
            raise Reject(f"Member {member} does not exist.")  # no retry
        await send_mail(email, "Welcome!", idempotency_key=ctx.idempotency_key)
        await connection.execute("update members set welcomed_at = now() where id = $1", member)
        await ctx.complete(connection, email)  # the row changes exactly if the task has succeeded
    return str(email)


async def send_mail(to: str, text: str, *, idempotency_key: str) -> None:
    """Send a mail. Replace this with your provider, and give it the key: an attempt may be repeated."""
    print(f"mail to {to}: {text} ({idempotency_key})")

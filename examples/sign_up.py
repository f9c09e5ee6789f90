from holdfast import Client, Ctx, task

client = Client()  # DATABASE_URL, or the database of `holdfast dev`


@task(queue="mail", retries=5, timeout=60)
async def welcome(ctx: Ctx, email: str) -> str:
    ctx.progress(1, 2, message=f"writing to {email}")
    return f"Welcome, {email}!"


async def sign_up(email: str) -> None:
    async with client.transaction() as connection:  # or your own
        await connection.execute("insert into members values ($1)", email)
        await client.submit(welcome(email), on=connection)
        # The job exists only if the transaction commits.

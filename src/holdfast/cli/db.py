import click


@click.group()
def db() -> None:
    """The PostgreSQL that comes with Holdfast."""

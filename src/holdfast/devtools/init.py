"""`holdfast init [DIR]`: a new project from a template. What is there already is never touched."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.session import CliSession, json_option, pass_session
from holdfast.errors import ConflictError

TEMPLATES = Path(__file__).parent / "templates"
RENAMED = {"gitignore": ".gitignore"}  # under its own name it would hide files of ours
FIRST = {"script": "app.py", "fastapi": "tasks.py", "django": "tasks.py", "pipelines": "app.py"}


@click.command()
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path, file_okay=False))
@click.option("--template", "-t", type=click.Choice(sorted(FIRST)), default="script", show_default=True,
              help="script: one file; pipelines: several tasks; fastapi, django: web and tasks.")  # fmt: skip
@json_option
@pass_session
def init(session: CliSession, folder: Path, template: str) -> None:
    """Make a project in DIR (default: this folder) from a template. Never overwrites."""
    root = TEMPLATES / template
    sources = {
        folder / source.relative_to(root).with_name(RENAMED.get(source.name, source.name)): source
        for source in sorted(root.rglob("*"))
        if source.is_file() and "__pycache__" not in source.parts
    }
    there = [str(place) for place in sources if place.exists() or place.is_symlink()]
    if there:
        raise ConflictError(
            f"{', '.join(there)} {'is' if len(there) == 1 else 'are'} there already; nothing was written.",
            fix="Choose an empty folder: holdfast init my-project",
        )
    folder.mkdir(parents=True, exist_ok=True)
    for place, source in sources.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("x", encoding="utf-8") as file:
            file.write(source.read_text(encoding="utf-8"))
    if session.output.json:
        session.output.print_record({"folder": str(folder), "files": [str(place) for place in sources]})
        return
    for place in sources:
        session.output.print_line(f"  {place}")
    inside = "" if folder == Path() else f"cd {folder} && "
    what = "read README.md" if template == "django" else f"holdfast dev {FIRST[template]}"
    session.output.print_line(f"Next: {inside}{what}")

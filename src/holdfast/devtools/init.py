"""`holdfast init [DIR]`: create a project from a template. Existing files are never changed."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.session import CliSession, json_option, pass_session
from holdfast.errors import ConflictError

TEMPLATES_FOLDER = Path(__file__).parent / "templates"
SHARED_FOLDER = TEMPLATES_FOLDER / "shared"  # files that every template has
# A real .gitignore would hide files of the template from git.
RENAMED_TEMPLATE_FILES = {"gitignore": ".gitignore", "dockerignore": ".dockerignore"}
APP_FILES_BY_TEMPLATE = {
    "script": "app.py",
    "fastapi": "tasks.py",
    "django": "tasks.py",
    "flask": "tasks.py",
    "pipelines": "app.py",
    "system": "contacts",
}
TEMPLATES_WITH_INSTRUCTIONS = ("django", "flask", "system")


@click.command("init")
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--template",
    "-t",
    type=click.Choice(sorted(APP_FILES_BY_TEMPLATE)),
    default="script",
    show_default=True,
    help="Copy this project template: script (one file), pipelines (a job with several tasks), "
    "fastapi, django or flask (a web application with tasks), system (API, page and tables of your own). "
    "Each has tests and a Dockerfile.",
)
@json_option
@pass_session
def init_command(session: CliSession, folder: Path, template: str) -> None:
    """Create a project from a template in the folder DIR. Default: the current folder.

    The command fails if one of the files exists, and never overwrites a file.
    """
    sources = {
        folder
        / source.relative_to(root).with_name(RENAMED_TEMPLATE_FILES.get(source.name, source.name)): source
        for root in (TEMPLATES_FOLDER / template, SHARED_FOLDER)
        for source in sorted(root.rglob("*"))
        if source.is_file() and "__pycache__" not in source.parts
    }
    existing = [str(target) for target in sources if target.exists() or target.is_symlink()]
    if existing:
        raise ConflictError(
            f"Nothing was written, because files already exist: {', '.join(existing)}.",
            fix="Choose an empty folder: holdfast init my-project",
        )
    folder.mkdir(parents=True, exist_ok=True)
    for target, source in sources.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("x", encoding="utf-8") as file:
            file.write(_read_template_file(source, APP_FILES_BY_TEMPLATE[template]))
    if session.output.json:
        session.output.print_record({"folder": str(folder), "files": [str(target) for target in sources]})
        return
    for target in sources:
        session.output.print_line(f"  {target}")
    change_folder = "" if folder == Path() else f"cd {folder} && "
    has_instructions = template in TEMPLATES_WITH_INSTRUCTIONS
    next_step = "read README.md" if has_instructions else f"holdfast dev {APP_FILES_BY_TEMPLATE[template]}"
    session.output.print_line(f"Next: {change_folder}{next_step}")


def _read_template_file(source: Path, app: str) -> str:
    """Read a file of a template. Shared files have placeholders for the application."""
    text = source.read_text(encoding="utf-8")
    if SHARED_FOLDER in source.parents:
        text = text.replace("{app}", app).replace("{module}", app.removesuffix(".py"))
    return text

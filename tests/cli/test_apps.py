from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli import app_loader
from holdfast.errors import HoldfastError, InvalidError, NotFoundError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def write_app(path: Path, body: str) -> str:
    path.write_text(f"from holdfast import consumer, task\n{body}")
    return path.name


def test_file_is_loaded_with_its_tasks(folder: Path) -> None:
    name = write_app(
        folder / "hf_file_app.py", "@task\ndef a(): ...\n@task(name='bee')\nasync def b(): ...\nc = 3\n"
    )
    assert sorted(app_loader.load_app(name).tasks) == ["a", "bee"]


def test_consumers_are_loaded_beside_tasks(folder: Path) -> None:
    name = write_app(
        folder / "hf_letters_app.py",
        "@task\ndef a(): ...\n@consumer(queue='Post')\ndef b(msg): ...\n@consumer('fax')\ndef c(msg): ...\n",
    )
    app = app_loader.load_app(name)
    assert (sorted(app.tasks), sorted(app.consumers)) == (["a"], ["fax", "post"])
    assert sorted(app.with_consumers_of(["fax", "other"]).consumers) == ["fax"]
    assert sorted(app_loader.load_app("hf_letters_app:b").consumers) == ["post"]


def test_module_and_attribute_are_loaded(folder: Path) -> None:
    write_app(
        folder / "hf_module_app.py",
        "@task\ndef a(): ...\n@task\ndef b(): ...\nsome = [b]\nother = {'x': a}\n",
    )
    assert sorted(app_loader.load_app("hf_module_app").tasks) == ["a", "b"]
    assert sorted(app_loader.load_app("hf_module_app:some").tasks) == ["b"]
    assert sorted(app_loader.load_app("hf_module_app:other").tasks) == ["a"]
    assert sorted(app_loader.load_app("hf_module_app:a").tasks) == ["a"]


def test_file_can_import_files_of_its_folder(folder: Path) -> None:
    below = folder / "sub"
    below.mkdir()
    write_app(below / "hf_neighbour.py", "@task\ndef far(): ...\n")
    (below / "hf_main_app.py").write_text("from hf_neighbour import far\n")
    assert sorted(app_loader.load_app("sub/hf_main_app.py").tasks) == ["far"]


@pytest.mark.parametrize(
    ("app", "body", "error_type", "message"),
    [
        ("hf_none.py", None, NotFoundError, "File hf_none.py does not exist"),
        ("hf_none_module", None, NotFoundError, "Module hf_none_module does not exist"),
        ("hf_empty.py", "x = 1\n", NotFoundError, "hf_empty.py defines no task"),
        ("hf_syntax.py", "def broken(:\n", InvalidError, "hf_syntax.py:2: SyntaxError"),
        ("hf_raises.py", "\n1 / 0\n", InvalidError, "hf_raises.py:3: ZeroDivisionError"),
        ("hf_imports.py", "import hf_missing_thing\n", InvalidError, "No module named 'hf_missing_thing'"),
        (
            "hf_twice.py",
            "@task\ndef a(): ...\nb = task(name='a')(lambda: 1)\n",
            InvalidError,
            "Two tasks have the name 'a'",
        ),
        (
            "hf_rivals.py",
            "@consumer('q')\ndef a(msg): ...\n@consumer('Q')\ndef b(msg): ...\n",
            InvalidError,
            "Two consumers read queue 'Q'",
        ),
        ("hf_attr:nope", "@task\ndef a(): ...\n", NotFoundError, "hf_attr has no attribute nope"),
        ("hf_wrong:x", "x = 3\n", InvalidError, "neither a task, nor a consumer"),
    ],
)
def test_load_error_names_the_cause(
    folder: Path, app: str, body: str | None, error_type: type[HoldfastError], message: str
) -> None:
    if body is not None:
        write_app(folder / (app.partition(":")[0].removesuffix(".py") + ".py"), body)
    with pytest.raises(error_type, match=message) as caught:
        app_loader.load_app(app)
    assert "Traceback" not in str(caught.value)


def test_subcommand_of_workers_is_suggested() -> None:
    with pytest.raises(NotFoundError) as caught:
        app_loader.load_app("list")
    assert caught.value.fix == "To manage running workers: holdfast workers list"

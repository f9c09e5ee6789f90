from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli import apps
from holdfast.errors import HoldfastError, InvalidError, NotFoundError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def write(path: Path, body: str) -> str:
    path.write_text(f"from holdfast import consumer, task\n{body}")
    return path.name


def test_a_file_gives_its_tasks(folder: Path) -> None:
    name = write(
        folder / "hf_file_app.py", "@task\ndef a(): ...\n@task(name='bee')\nasync def b(): ...\nc = 3\n"
    )
    assert sorted(apps.load(name).tasks) == ["a", "bee"]


def test_consumers_are_found_beside_tasks(folder: Path) -> None:
    name = write(
        folder / "hf_letters_app.py",
        "@task\ndef a(): ...\n@consumer(queue='Post')\ndef b(msg): ...\n@consumer('fax')\ndef c(msg): ...\n",
    )
    found = apps.load(name)
    assert (sorted(found.tasks), sorted(found.consumers)) == (["a"], ["fax", "post"])
    assert sorted(found.only(["fax", "other"]).consumers) == ["fax"]
    assert sorted(apps.load("hf_letters_app:b").consumers) == ["post"]


def test_a_module_and_an_attribute_of_it(folder: Path) -> None:
    write(
        folder / "hf_module_app.py",
        "@task\ndef a(): ...\n@task\ndef b(): ...\nsome = [b]\nother = {'x': a}\n",
    )
    assert sorted(apps.load("hf_module_app").tasks) == ["a", "b"]
    assert sorted(apps.load("hf_module_app:some").tasks) == ["b"]
    assert sorted(apps.load("hf_module_app:other").tasks) == ["a"]
    assert sorted(apps.load("hf_module_app:a").tasks) == ["a"]


def test_a_file_finds_its_neighbours(folder: Path) -> None:
    below = folder / "sub"
    below.mkdir()
    write(below / "hf_neighbour.py", "@task\ndef far(): ...\n")
    (below / "hf_main_app.py").write_text("from hf_neighbour import far\n")
    assert sorted(apps.load("sub/hf_main_app.py").tasks) == ["far"]


@pytest.mark.parametrize(
    ("app", "body", "kind", "says"),
    [
        ("hf_none.py", None, NotFoundError, "There is no file hf_none.py"),
        ("hf_none_module", None, NotFoundError, "There is no module hf_none_module"),
        ("hf_empty.py", "x = 1\n", NotFoundError, "There is no task in hf_empty.py"),
        ("hf_syntax.py", "def broken(:\n", InvalidError, "hf_syntax.py:2: SyntaxError"),
        ("hf_raises.py", "\n1 / 0\n", InvalidError, "hf_raises.py:3: ZeroDivisionError"),
        ("hf_imports.py", "import hf_missing_thing\n", InvalidError, "No module named 'hf_missing_thing'"),
        (
            "hf_twice.py",
            "@task\ndef a(): ...\nb = task(name='a')(lambda: 1)\n",
            InvalidError,
            "Two tasks are called 'a'",
        ),
        (
            "hf_rivals.py",
            "@consumer('q')\ndef a(msg): ...\n@consumer('Q')\ndef b(msg): ...\n",
            InvalidError,
            "Two consumers read queue 'Q'",
        ),
        ("hf_attr:nope", "@task\ndef a(): ...\n", NotFoundError, "hf_attr has no nope"),
        ("hf_wrong:x", "x = 3\n", InvalidError, "neither a task nor a list"),
    ],
)
def test_what_cannot_be_loaded_is_told_plainly(
    folder: Path, app: str, body: str | None, kind: type[HoldfastError], says: str
) -> None:
    if body is not None:
        write(folder / (app.partition(":")[0].removesuffix(".py") + ".py"), body)
    with pytest.raises(kind, match=says) as caught:
        apps.load(app)
    assert "Traceback" not in str(caught.value)


def test_who_means_another_command_is_told_its_name() -> None:
    with pytest.raises(NotFoundError) as caught:
        apps.load("list")
    assert caught.value.fix == "To look after workers that run: holdfast workers list"

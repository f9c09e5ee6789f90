"""The public names of holdfast.server: their examples run, and a missing extra is one clear sentence."""

from __future__ import annotations

import doctest
import inspect
import subprocess
import sys
from typing import Any

import pytest

from holdfast import server


def list_documented_names() -> list[str]:
    """Return the public classes and functions. Constants and type aliases have no docstring."""
    values = {name: getattr(server, name) for name in server.__all__}
    return [name for name, value in values.items() if inspect.isclass(value) or inspect.isfunction(value)]


@pytest.mark.parametrize("name", list_documented_names())
def test_the_example_of_each_public_name_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")  # nothing connects to it
    documented: Any = getattr(server, name)
    [example] = doctest.DocTestFinder(recurse=False).find(documented, name, globs={})
    assert example.examples, f"{name} has no example"
    result = doctest.DocTestRunner().run(example)
    assert (result.attempted > 0, result.failed) == (True, 0)


def test_a_missing_extra_is_one_sentence_with_the_fix() -> None:
    code = "import sys; sys.modules['starlette'] = None\nimport holdfast.server"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last_line = run.stderr.strip().splitlines()[-1]
    assert "needs the package starlette" in last_line
    assert "pip install 'holdfast[server]'" in last_line

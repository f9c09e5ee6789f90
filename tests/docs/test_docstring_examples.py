"""Tests that the examples in docstrings of public names run as printed."""

from __future__ import annotations

import asyncio
import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.settings import Secret

PUBLIC_MODULES = (
    "holdfast",
    "holdfast.errors",
    "holdfast.telemetry",
    "holdfast.egress",
    "holdfast.testing",
    "holdfast.systems",
)
NETWORK_EXAMPLE_PATTERN = re.compile(r"example\.com/hook")  # compiled, but not called


def iterate_docstrings() -> Iterator[tuple[str, str]]:
    for module in PUBLIC_MODULES:
        namespace = importlib.import_module(module)
        yield module, namespace.__doc__ or ""
        for name in namespace.__all__:
            value = getattr(namespace, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                doc = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
                yield f"{module}.{name}", inspect.cleandoc(doc or "")


DOCTEST_DOCSTRINGS = {name: doc for name, doc in iterate_docstrings() if ">>>" in doc}
FENCED_DOCSTRINGS = {name: doc for name, doc in iterate_docstrings() if "```python" in doc}


@pytest.fixture
def database_url(url: Secret, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", url.reveal())


@pytest.mark.usefixtures("database_url")
@pytest.mark.filterwarnings("ignore:call of task")
@pytest.mark.parametrize("name", DOCTEST_DOCSTRINGS)
def test_doctest_examples_run(name: str) -> None:
    """Run the example, compare what it prints, and call its `main` against a real database."""
    names: dict[str, Any] = {"__name__": "__main__"}
    parsed = doctest.DocTestParser().get_doctest(DOCTEST_DOCSTRINGS[name], names, name, None, None)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    report: list[str] = []
    runner.run(parsed, out=report.append, clear_globs=False)
    assert runner.failures == 0, "".join(report)
    main = parsed.globs.get("main")
    if main is not None and not NETWORK_EXAMPLE_PATTERN.search(DOCTEST_DOCSTRINGS[name]):
        if inspect.iscoroutinefunction(main):
            asyncio.run(main())
        else:
            main()
            parsed.globs["client"].blocking.close()


@pytest.mark.usefixtures("database_url")
@pytest.mark.parametrize("name", FENCED_DOCSTRINGS)
def test_fenced_examples_run(name: str) -> None:
    for code in re.findall(r"```python\n(.*?)```", FENCED_DOCSTRINGS[name], re.DOTALL):
        exec(compile(code, name, "exec"), {"__name__": "__main__"})

"""The examples in docstrings of public names run as they are printed, with their imports."""

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

MODULES = (
    "holdfast",
    "holdfast.errors",
    "holdfast.telemetry",
    "holdfast.egress",
    "holdfast.testing",
    "holdfast.systems",
)
NEEDS_NETWORK = re.compile(r"example\.com/hook")  # these are compiled and not called


def find_examples() -> Iterator[tuple[str, str]]:
    for module in MODULES:
        namespace = importlib.import_module(module)
        yield module, namespace.__doc__ or ""
        for name in namespace.__all__:
            value = getattr(namespace, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                doc = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
                yield f"{module}.{name}", inspect.cleandoc(doc or "")


DOCTESTS = {name: doc for name, doc in find_examples() if ">>>" in doc}
FENCED = {name: doc for name, doc in find_examples() if "```python" in doc}


@pytest.fixture
def database_url(url: Secret, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", url.reveal())


@pytest.mark.usefixtures("database_url")
@pytest.mark.filterwarnings("ignore:call of task")
@pytest.mark.parametrize("name", DOCTESTS)
def test_doctests(name: str) -> None:
    """Run the example, compare what it prints, and call its `main` against a real database."""
    names: dict[str, Any] = {"__name__": "__main__"}
    parsed = doctest.DocTestParser().get_doctest(DOCTESTS[name], names, name, None, None)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    report: list[str] = []
    runner.run(parsed, out=report.append, clear_globs=False)
    assert runner.failures == 0, "".join(report)
    main = parsed.globs.get("main")
    if main is not None and not NEEDS_NETWORK.search(DOCTESTS[name]):
        if inspect.iscoroutinefunction(main):
            asyncio.run(main())
        else:
            main()
            parsed.globs["client"].blocking.close()


@pytest.mark.usefixtures("database_url")
@pytest.mark.parametrize("name", FENCED)
def test_fenced_examples(name: str) -> None:
    for code in re.findall(r"```python\n(.*?)```", FENCED[name], re.DOTALL):
        exec(compile(code, name, "exec"), {"__name__": "__main__"})

"""Generate src/holdfast/client/blocking/ from the asynchronous classes: the same methods without `await`.

python scripts/generate_blocking.py           write the files
python scripts/generate_blocking.py --check   exit 1 if a file is not up to date
"""

from __future__ import annotations

import ast
import copy
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLIENT_DIR = ROOT / "src" / "holdfast" / "client"
BLOCKING_DIR = CLIENT_DIR / "blocking"

# Names in annotations and what stands for them in code without an event loop.
BLOCKING_NAMES = {
    "JobHandle": "BlockingJobHandle",
    "BatchHandle": "BlockingBatchHandle",
    "PendingBatch": "BlockingBatchHandle",
    "AsyncIterator": "Iterator",
    "AsyncGenerator": "AbstractContextManager",  # the return type of an @asynccontextmanager
    "FileReader": "BlockingFileReader",
}
# Their values are asynchronous objects of other libraries: use connections and stores of your own.
EXCLUDED_METHODS = {"connection", "transaction", "store", "shard", "shard_for"}


@dataclass(frozen=True)
class BlockingClass:
    """A class to generate: its base in the source, its name, its docstring and its constructor."""

    sources: tuple[tuple[str, str], ...]  # (file, class), whose methods are merged
    name: str
    doc: str
    constructor: str
    replaced: tuple[str, ...] = ()  # methods that the constructor text defines by itself


def build_attribute_class(source: str, name: str, attribute: str) -> BlockingClass:
    return BlockingClass(
        sources=((source, name),),
        name=f"Blocking{name}",
        doc=f"`client.blocking.{attribute}`: the methods of `client.{attribute}` for code without an event loop.",
        constructor=f"""
def __init__(self, inner: {name}, thread: LoopThread) -> None:
    self._inner = inner
    self._thread = thread
""",
    )


JOB_HANDLE = BlockingClass(
    sources=(("handles.py", "JobHandle"),),
    name="BlockingJobHandle",
    doc="""A submitted job, for code without an event loop.

    >>> from holdfast import BlockingJobHandle, Client, task
    >>> client = Client()
    >>> @task
    ... def double(x: int) -> int:
    ...     return 2 * x
    >>> def main() -> None:
    ...     handle: BlockingJobHandle[int] = client.blocking.submit(double(21))
    ...     print(handle.get().status)
    """,
    constructor="""
def __init__(self, inner: JobHandle[R_co], thread: LoopThread) -> None:
    self.id = inner.id
    self.created = inner.created
    self._inner = inner
    self._thread = thread

def __repr__(self) -> str:
    return f"BlockingJobHandle({self.id})"
""",
)
BATCH_HANDLE = BlockingClass(
    sources=(("batches.py", "BatchHandle"),),
    name="BlockingBatchHandle",
    doc="""A batch, for code without an event loop. It accepts jobs until it is closed.

    >>> from holdfast import BlockingBatchHandle, Client, task
    >>> client = Client()
    >>> @task
    ... def export(page: int) -> int:
    ...     return page
    >>> def main() -> None:
    ...     batch: BlockingBatchHandle = client.blocking.batches.open("pages")
    ...     with batch:
    ...         batch.submit_many(export(page) for page in range(3))
    ...     print(batch.get().total)
    """,
    constructor="""
def __init__(self, inner: BatchHandle, thread: LoopThread) -> None:
    self.id = inner.id
    self._inner = inner
    self._thread = thread

def __repr__(self) -> str:
    return f"BlockingBatchHandle({self.id})"

def __enter__(self) -> BlockingBatchHandle:
    return self

def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
    if error_type is None:
        self.close()
""",
)
CLIENT_CLASS = BlockingClass(
    sources=(
        ("submission.py", "JobSubmission"),
        ("jobs.py", "JobOperations"),
        ("async_client.py", "AsyncClient"),
    ),
    name="BlockingClient",
    doc="""`client.blocking`: the methods of a client for code without an event loop.

    Any number of threads may use it at once. A background thread, which starts with the first call, runs the
    calls. A synchronous connection that you pass as `on=` is used in your own thread.

    >>> from holdfast import Client, task
    >>> client = Client()
    >>> @task
    ... def double(x: int) -> int:
    ...     return 2 * x
    >>> def main() -> None:
    ...     handle = client.blocking.submit(double(21))
    ...     print(client.blocking.get(handle.id).status)
    """,
    constructor='''
def __init__(self, inner: AsyncClient) -> None:
    self._inner = inner
    self._thread = LoopThread()
    self.job_types = inner.job_types
    self.queues = BlockingQueues(inner.queues, self._thread)
    self.files = BlockingFiles(inner.files, self._thread)
    self.schedules = BlockingSchedules(inner.schedules, self._thread)
    self.batches = BlockingBatches(inner.batches, self._thread)
    self.limits = BlockingLimits(inner.limits, self._thread)
    self.alerts = BlockingAlerts(inner.alerts, self._thread)

def __enter__(self) -> BlockingClient:
    return self

def __exit__(self, *_: object) -> None:
    self.close()

def close(self) -> None:
    """Close the connections of `client.blocking` and end its thread. The next call starts a new one.

    Calls that wait in other threads raise RuntimeError.
    """
    self._thread.close()
''',
    replaced=("close",),
)
CLASSES_BY_FILE = {
    "handles.py": [JOB_HANDLE],
    "batches.py": [BATCH_HANDLE, build_attribute_class("batches.py", "Batches", "batches")],
    "files.py": [build_attribute_class("files.py", "Files", "files")],
    "alerts.py": [build_attribute_class("alerts.py", "Alerts", "alerts")],
    "limits.py": [build_attribute_class("limits.py", "Limits", "limits")],
    "schedules.py": [build_attribute_class("schedules.py", "Schedules", "schedules")],
    "queues.py": [build_attribute_class("messages/queues.py", "Queues", "queues")],
    "blocking_client.py": [CLIENT_CLASS],
}
FILE_IMPORTS = """
from collections.abc import Iterator
from contextlib import AbstractContextManager
from holdfast.client.blocking.file_reader import BlockingFileReader, open_blocking_reader
from holdfast.client.blocking.loop_thread import LoopThread
"""


class _BlockingNameReplacer(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = BLOCKING_NAMES.get(node.id, node.id)
        return node


def generate_file(name: str) -> str:
    classes = CLASSES_BY_FILE[name]
    modules = dict.fromkeys(source for each in classes for source, _ in each.sources)
    trees = [ast.parse((CLIENT_DIR / module).read_text(encoding="utf-8")) for module in modules]
    lines = [
        '"""Generated by scripts/generate_blocking.py from the asynchronous classes. Do not edit."""',
        "from __future__ import annotations",
        *(
            line
            for module, tree in zip(modules, trees, strict=True)
            for line in _iterate_imports(name, module, tree)
        ),
        *sorted(_find_type_variables(trees)),
    ]
    for each in classes:
        lines += _generate_class(each)
    return _format_with_ruff("\n".join(lines), name)


def _iterate_imports(name: str, module: str, tree: ast.Module) -> Iterator[str]:
    """Yield import lines for all names of the source. The linter removes unused imports."""
    yield from (ast.unparse(node) for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom)))
    yield FILE_IMPORTS
    defined = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    assigned = [node for node in tree.body if isinstance(node, ast.Assign) and not _is_type_variable(node)]
    defined += [node.targets[0].id for node in assigned if isinstance(node.targets[0], ast.Name)]
    dotted = "holdfast.client." + module.removesuffix(".py").replace("/", ".")
    yield f"from {dotted} import {', '.join(defined)}"
    for other, classes in CLASSES_BY_FILE.items():
        if other != name:
            yield (
                f"from holdfast.client.blocking.{other.removesuffix('.py')} import "
                + ", ".join(each.name for each in classes)
            )


def _find_type_variables(trees: list[ast.Module]) -> set[str]:
    return {ast.unparse(node) for tree in trees for node in tree.body if _is_type_variable(node)}


def _is_type_variable(node: ast.stmt) -> bool:
    value = node.value if isinstance(node, ast.Assign) else None
    return isinstance(value, ast.Call) and ast.unparse(value.func) == "TypeVar"


def _generate_class(blocking: BlockingClass) -> Iterator[str]:
    nodes = [_find_class(source, name) for source, name in blocking.sources]
    generic = [ast.unparse(base) for base in nodes[0].bases if ast.unparse(base).startswith("Generic")]
    yield f"class {blocking.name}{f'({generic[0]})' if generic else ''}:"
    yield f'    """{blocking.doc}"""'
    yield _indent_text(blocking.constructor)
    for node in nodes:
        for method in node.body:
            if not isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            if method.name.startswith("_") or method.name in EXCLUDED_METHODS | set(blocking.replaced):
                continue
            yield _indent_text(ast.unparse(_generate_method(method)))


def _find_class(source: str, name: str) -> ast.ClassDef:
    tree = ast.parse((CLIENT_DIR / source).read_text(encoding="utf-8"))
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


def _generate_method(method: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.FunctionDef:
    decorators = [ast.unparse(each) for each in method.decorator_list]
    returns = ast.unparse(method.returns) if method.returns else "None"
    blocking = ast.FunctionDef(
        name=method.name,
        args=copy.deepcopy(method.args),
        body=[],
        decorator_list=[each for each in method.decorator_list if ast.unparse(each) != "asynccontextmanager"],
        returns=_BlockingNameReplacer().visit(copy.deepcopy(method.returns or ast.Constant(None))),
        lineno=0,
    )
    if "overload" in decorators:
        blocking.body = [ast.Expr(ast.Constant(...))]
        return ast.fix_missing_locations(blocking)
    doc = (ast.get_docstring(method) or "").partition("\n\n>>>")[0]
    doc = doc.replace("async for", "for").replace("async with", "with").replace("await ", "")
    doc = re.sub(r"\bclient\.(?!blocking)", "client.blocking.", doc)
    if "\n" in doc:
        doc = doc.replace("\n", "\n        ").replace("\n        \n", "\n\n") + "\n        "
    body = _build_method_body(method, returns, is_property="property" in decorators)
    blocking.body = [ast.Expr(ast.Constant(doc)), *ast.parse(body).body]
    return ast.fix_missing_locations(blocking)


def _build_method_body(
    method: ast.FunctionDef | ast.AsyncFunctionDef, returns: str, *, is_property: bool
) -> str:
    if is_property:
        return f"return self._inner.{method.name}"
    call = f"self._inner.{method.name}({', '.join(_iterate_call_arguments(method.args))})"
    if returns.startswith("AsyncIterator["):
        return f"return self._thread.iterate({call})"
    if returns.startswith("AsyncGenerator["):
        return f"return open_blocking_reader({call}, self._thread)"
    if returns == "PendingBatch":
        call = f"self._thread.run({call}.create())"
    elif isinstance(method, ast.AsyncFunctionDef):
        has_on = any(argument.arg == "on" for argument in method.args.kwonlyargs)
        call = f"self._thread.run({call}{', on' if has_on else ''})"
    if returns == "None":
        return call
    if returns.startswith("list[JobHandle"):
        return f"return [BlockingJobHandle(handle, self._thread) for handle in {call}]"
    wrapper = BLOCKING_NAMES.get(returns.partition("[")[0])
    return f"return {wrapper}({call}, self._thread)" if wrapper else f"return {call}"


def _iterate_call_arguments(arguments: ast.arguments) -> Iterator[str]:
    for each in arguments.args[1:]:
        # An iterable may be a generator that must run in the thread of the caller.
        is_iterable = each.annotation is not None and ast.unparse(each.annotation).startswith("Iterable[")
        is_optional = each.annotation is not None and "None" in ast.unparse(each.annotation)
        yield f"list({each.arg})" if is_iterable and not is_optional else each.arg
    yield from (f"{each.arg}={each.arg}" for each in arguments.kwonlyargs)
    if arguments.kwarg is not None:
        yield f"**{arguments.kwarg.arg}"


def _indent_text(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.strip("\n").splitlines()) + "\n"


def _format_with_ruff(text: str, name: str) -> str:
    """Let ruff remove unused imports, sort the others and format the file."""
    with tempfile.TemporaryDirectory(dir=BLOCKING_DIR) as folder:
        path = Path(folder) / name
        path.write_text(text, encoding="utf-8")
        ruff = [sys.executable, "-m", "ruff"]
        rules = ["--select", "F401,F811,I001,RUF022", "--unsafe-fixes", "--fix", "--quiet"]
        for _ in range(2):  # a name that was imported twice is unused only after the first pass
            subprocess.run([*ruff, "check", *rules, path], cwd=ROOT, check=False)
        subprocess.run([*ruff, "format", "--quiet", path], cwd=ROOT, check=True)
        return path.read_text(encoding="utf-8")


def main() -> int:
    check = "--check" in sys.argv[1:]
    outdated: list[str] = []
    for name in CLASSES_BY_FILE:
        text = generate_file(name)
        path = BLOCKING_DIR / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            outdated.append(name)
            if not check:
                path.write_text(text, encoding="utf-8")
    for name in outdated:
        print(f"{'not up to date' if check else 'wrote'}: src/holdfast/client/blocking/{name}")
    if check and outdated:
        print("fix: python scripts/generate_blocking.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

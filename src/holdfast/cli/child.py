"""`python -m holdfast.cli.child APP DESCRIPTOR`: a child process of a worker, started by it."""

from __future__ import annotations

import os
import sys

from holdfast.cli import apps
from holdfast.errors import HoldfastError
from holdfast.worker import isolation_child


def main() -> None:
    app, number = sys.argv[1:]
    pipe, start = isolation_child.begin(int(number))
    sys.path.insert(0, os.getcwd())  # noqa: PTH109  (as the worker does)
    try:
        found = apps.load(app)
        isolation_child.serve(pipe, start, found.tasks, found.lifespan)
    except HoldfastError as problem:
        sys.stderr.write(f"{problem}\n")
        sys.exit(problem.exit_code)


if __name__ == "__main__":
    main()

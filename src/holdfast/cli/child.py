"""`python -m holdfast.cli.child APP DESCRIPTOR`: a child process that runs tasks for a worker.

The worker starts it and talks to it through the pipe with the number DESCRIPTOR.
"""

from __future__ import annotations

import os
import sys

from holdfast.cli import app_loader
from holdfast.errors import HoldfastError
from holdfast.worker.child_main import connect_to_worker, run_child_process


def main() -> None:
    app_name, descriptor = sys.argv[1:]
    pipe, start = connect_to_worker(int(descriptor))
    sys.path.insert(0, os.getcwd())  # noqa: PTH109  (as the worker does)
    try:
        app = app_loader.load_app(app_name)
        run_child_process(pipe, start, app.tasks, app.lifespan)
    except HoldfastError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()

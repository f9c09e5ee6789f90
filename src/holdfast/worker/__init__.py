"""The executing side: claim tasks, run them, record their outcomes, and consume messages.

`holdfast.Worker` (public_worker.py) builds a `WorkerRuntime` (runtime.py), which connects the parts: fetcher,
task executor, runner, outbox, heartbeat and maintenance.
"""

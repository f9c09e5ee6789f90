"""`client.blocking`: the client for code without an event loop.

The modules except loop_thread.py and file_reader.py are generated from the asynchronous classes by
scripts/generate_blocking.py. Each method runs the asynchronous one in a background thread.
"""

from holdfast.client.blocking.batches import BlockingBatchHandle
from holdfast.client.blocking.blocking_client import BlockingClient
from holdfast.client.blocking.handles import BlockingJobHandle

__all__ = ["BlockingBatchHandle", "BlockingClient", "BlockingJobHandle"]

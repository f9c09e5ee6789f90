"""Programs that read files of strangers: run without rights, with limits, and ended with the worker.

See docs/decisions/0021-media.md. The modules whose names end in `_process` are programs of their own. This
package imports nothing, so that they start quickly.
"""

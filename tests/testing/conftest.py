"""The sample project is run from outside, with a configuration of its own."""

from __future__ import annotations

collect_ignore = ["sample"]

"""A soak run: all features together for hours, with flat curves of memory, bloat and latency."""

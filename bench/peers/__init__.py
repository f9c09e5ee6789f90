"""Benchmarks that run the same work with Holdfast and with other queues on the same server."""

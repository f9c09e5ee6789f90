"""Holdfast beside the others: the same work, the same server, the same run; installed on demand."""

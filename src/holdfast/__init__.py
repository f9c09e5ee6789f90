"""Background work for Python applications on PostgreSQL."""

__version__ = "0.1.0.dev0"

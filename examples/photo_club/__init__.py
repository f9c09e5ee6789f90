"""A photo club: FastAPI with a signup in a transaction, a nightly newsletter, albums and signed links."""

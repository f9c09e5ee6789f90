"""The HTTP API. `app` creates the application; `holdfast.server` exports the public names.

`middleware` surrounds every request. `operations` declares endpoints and checks their callers. `identity`
identifies the caller and opens the transaction in which the database decides what the caller may do. Every
noun has a module with its routes: `jobs`, `batches`, `files`, `queues`, ...
"""

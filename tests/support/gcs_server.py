"""The XML interface of Google Cloud Storage, as a server: `python gcs_server.py PORT TOKEN`.

Google's XML interface is that of S3 with another way to sign in. moto answers what they share; the bearer
token, and that a link is signed at all, are checked here. Whether a signature is right is not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qsl

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

# What moto lets in; it checks no signatures.
LET_IN = "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=s"
SIGNED = {"X-Goog-Algorithm", "X-Goog-Credential", "X-Goog-Date", "X-Goog-Expires", "X-Goog-Signature"}


class Gate:
    def __init__(self, token: str) -> None:
        self._token = token
        self._store: Any = DomainDispatcherApplication(create_backend_app)

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        shown = environ.pop("HTTP_AUTHORIZATION", None)
        query = dict(parse_qsl(environ.get("QUERY_STRING", "")))
        if shown is None and query.keys() >= SIGNED and environ["REQUEST_METHOD"] == "GET":
            environ["QUERY_STRING"] = ""
        elif shown != f"Bearer {self._token}":
            start("401 Unauthorized", [("Content-Type", "application/xml")])
            return [b"<Error><Code>AuthenticationRequired</Code></Error>"]
        environ["HTTP_AUTHORIZATION"] = LET_IN
        answer: Iterable[bytes] = self._store(environ, start)
        return answer


if __name__ == "__main__":
    run_simple("127.0.0.1", int(sys.argv[1]), Gate(sys.argv[2]), threaded=True)

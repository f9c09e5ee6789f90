"""A server with the XML API of Google Cloud Storage: `python gcs_server.py PORT TOKEN`.

Google's XML API is the S3 API with different authentication. moto serves the common part. This module checks
the bearer token, and that a URL carries a signature; it does not verify the signature.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qsl

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

# Any well-formed header: moto does not check signatures.
MOTO_AUTHORIZATION = (
    "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=s"
)
SIGNATURE_PARAMETERS = {
    "X-Goog-Algorithm",
    "X-Goog-Credential",
    "X-Goog-Date",
    "X-Goog-Expires",
    "X-Goog-Signature",
}


class GcsAuthentication:
    def __init__(self, token: str) -> None:
        self._token = token
        self._store: Any = DomainDispatcherApplication(create_backend_app)

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        authorization = environ.pop("HTTP_AUTHORIZATION", None)
        query = dict(parse_qsl(environ.get("QUERY_STRING", "")))
        if (
            authorization is None
            and query.keys() >= SIGNATURE_PARAMETERS
            and environ["REQUEST_METHOD"] == "GET"
        ):
            environ["QUERY_STRING"] = ""
        elif authorization != f"Bearer {self._token}":
            start("401 Unauthorized", [("Content-Type", "application/xml")])
            return [b"<Error><Code>AuthenticationRequired</Code></Error>"]
        environ["HTTP_AUTHORIZATION"] = MOTO_AUTHORIZATION
        response: Iterable[bytes] = self._store(environ, start)
        return response


if __name__ == "__main__":
    run_simple("127.0.0.1", int(sys.argv[1]), GcsAuthentication(sys.argv[2]), threaded=True)

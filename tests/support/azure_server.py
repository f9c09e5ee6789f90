"""Azurite, Microsoft's emulator of Azure Blob Storage: its command, its URL, and its containers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import sys
import urllib.request
from email.utils import formatdate
from pathlib import Path
from urllib.parse import quote

from node_programs import NODE, install_npm_package
from object_store_servers import BUCKET

AZURITE_VERSION = "3.37.0"
# Of what Azurite depends on: the next version depends on a package that is not published.
PINNED_PACKAGES = {"applicationinsights": "3.16.0"}
# Not secret: the default account of every Azurite.
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def format_azure_url(port: int, *, key: str = ACCOUNT_KEY, prefix: str = "") -> str:
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
    return f"az://{ACCOUNT}:{quote(key, safe='')}@{BUCKET}/{prefix}?endpoint={endpoint}"


def find_azurite_command() -> list[str]:
    """Return the command that starts Azurite, which is downloaded once."""
    folder = Path(sys.prefix) / "azurite"
    program = folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if not program.exists():
        folder.mkdir(exist_ok=True)
        (folder / "package.json").write_text(json.dumps({"overrides": PINNED_PACKAGES}))
        install_npm_package(f"azurite@{AZURITE_VERSION}", folder)
    return [NODE, str(program)]


def create_azure_container(port: int) -> None:
    """Create the container over HTTP, because the storage library cannot create containers."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    lines = ["PUT", *[""] * 11, *(f"{name}:{value}" for name, value in headers.items())]
    text = "\n".join([*lines, f"/{ACCOUNT}/{ACCOUNT}/{BUCKET}", "restype:container"])
    digest = hmac.new(base64.b64decode(ACCOUNT_KEY), text.encode(), hashlib.sha256).digest()
    headers["authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    url = f"http://127.0.0.1:{port}/{ACCOUNT}/{BUCKET}?restype=container"
    request = urllib.request.Request(url, method="PUT", headers=headers)
    urllib.request.urlopen(request, timeout=20).close()

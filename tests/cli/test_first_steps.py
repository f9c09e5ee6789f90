"""`holdfast init`, `bench`, `top`, `schema`, `version`, completion: in process, and as a user sees them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_clients import ISSUER, SECRET, make_token
from manual_worker import ManualWorker
from shell import Captured, Shell
from terminal import Terminal

from holdfast.cli.root import run_command_line
from holdfast.devtools.dev_processes import has_job_types
from holdfast.settings import Secret
from holdfast.version import __version__


@pytest.fixture
def shell(url: Secret, capsys: Captured) -> Shell:
    return Shell(url, capsys)


def build_environment(url: Secret, home: Path) -> dict[str, str]:
    return {**os.environ, "HOLDFAST_DATABASE_URL": url.reveal(), "HOLDFAST_HOME": str(home)}


def start_worker(app: str, folder: Path, environ: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast", "worker", app], cwd=folder, env=environ, stderr=subprocess.DEVNULL
    )


def test_script_template_runs(url: Secret, tmp_path: Path, capsys: Captured) -> None:
    assert run_command_line(["init", str(tmp_path / "new")]) == 0
    assert "holdfast dev app.py" in capsys.readouterr().out
    environ = build_environment(url, tmp_path)
    process = start_worker("app.py", tmp_path / "new", environ)
    try:
        done = subprocess.run(
            [sys.executable, "app.py", "to", "be", "or", "to"], cwd=tmp_path / "new", env=environ,
            capture_output=True, text=True, timeout=90, check=False,
        )  # fmt: skip
    finally:
        process.terminate()
        process.wait(40)
    assert "{'to': 2, 'be': 1, 'or': 1}" in done.stdout.replace(
        "'be': 1, 'or': 1, 'to': 2", "'to': 2, 'be': 1, 'or': 1"
    )
    assert done.returncode == 0


def test_fastapi_template_runs(url: Secret, tmp_path: Path) -> None:
    assert run_command_line(["init", str(tmp_path / "web"), "--template", "fastapi"]) == 0
    environ = build_environment(url, tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        start_worker("tasks.py", tmp_path / "web", environ),
        subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "web:app", "--port", str(port), "--log-level", "error"],
            cwd=tmp_path / "web", env=environ,
        ),
    ]  # fmt: skip
    try:
        base = f"http://127.0.0.1:{port}"
        job = fetch_json(f"{base}/members", {"email": "ann@example.com"}, lambda response: True)
        response = fetch_json(base + job["status"], None, lambda response: response["status"] == "succeeded")
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(40)
    assert response["output"] == "ann@example.com"


def test_pipelines_template_runs(url: Secret, tmp_path: Path) -> None:
    folder = tmp_path / "pipe"
    assert run_command_line(["init", str(folder), "--template", "pipelines"]) == 0
    (folder / "a.txt").write_text("to be or not to be")
    environ = build_environment(url, tmp_path)
    process = start_worker("app.py", folder, environ)
    try:
        done = subprocess.run(
            [sys.executable, "app.py", "a.txt"], cwd=folder, env=environ, capture_output=True, text=True,
            timeout=90, check=False,
        )  # fmt: skip
    finally:
        process.terminate()
        process.wait(40)
    assert done.returncode == 0, done.stderr
    assert "succeeded 100%" in done.stdout
    assert ">be</text>" in (folder / "words.svg").read_text()


def test_system_template_runs(url: Secret, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    assert run_command_line(["init", str(folder), "--template", "system"]) == 0
    environ = {
        **build_environment(url, tmp_path),
        "HOLDFAST_JWT_SECRET": SECRET,
        "HOLDFAST_JWT_ISSUER": ISSUER,
    }
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "holdfast", "api", "--system", "contacts", "--port", str(port)]
    api = subprocess.Popen(command, cwd=folder, env=environ, stderr=subprocess.DEVNULL)
    worker = start_worker("contacts", folder, environ)
    headers = {"Authorization": f"Bearer {make_token(str(uuid.uuid4()))}"}
    try:
        transport = httpx.HTTPTransport(retries=20)  # connects again, each time a little later
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, transport=transport) as http:
            started = http.post("/api/v1/contacts/import", content="name,email\nAnn,ann@example.com\n")
            path = f"/api/jobs/{started.json()['jobId']}"
            job = http.get(path, params={"wait": 20}, timeout=30).json()
            while job["status"] not in ("succeeded", "failed"):
                job = http.get(path, params={"wait": 20, "after": job["event_seq"]}, timeout=30).json()
            assert http.get("/").status_code == 200
    finally:
        for process in (api, worker):
            process.terminate()
            process.wait(40)
    assert job["output"] == {"imported": 1, "refused": 0}


def test_django_template_runs(url: Secret, tmp_path: Path) -> None:
    folder = tmp_path / "site"
    assert run_command_line(["init", str(folder), "--template", "django"]) == 0
    environ = {**build_environment(url, tmp_path), "DATABASE_URL": url.reveal()}
    subprocess.run([sys.executable, "manage.py", "migrate"], cwd=folder, env=environ, timeout=90, check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        start_worker("tasks.py", folder, environ),
        subprocess.Popen(
            [sys.executable, "manage.py", "runserver", "--noreload", str(port)], cwd=folder, env=environ
        ),
    ]
    try:
        base = f"http://127.0.0.1:{port}"
        created = fetch_json(f"{base}/notes", {"text": "to be or not to be"}, lambda response: True)
        response = fetch_json(base + created["note"], None, lambda response: response["words"])
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(40)
    assert response["words"] == {"to": 2, "be": 2, "or": 1, "not": 1}


def fetch_json(address: str, body: Any, accept: Any) -> Any:
    """Repeat a request until the server is up and `accept` is true for its response."""
    deadline = time.monotonic() + 60
    while True:
        request = urllib.request.Request(
            address, None if body is None else json.dumps(body).encode(), {"content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                response = json.loads(answer.read())
                if accept(response):
                    return response
        except urllib.error.HTTPError:
            raise
        except urllib.error.URLError:
            pass  # it is not up yet
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_init_never_overwrites(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "app.py").write_text("mine")
    assert run_command_line(["init", str(tmp_path)]) == 4
    assert "Nothing was written" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["app.py"]
    assert (tmp_path / "app.py").read_text() == "mine"
    (tmp_path / "app.py").unlink()
    (tmp_path / "README.md").symlink_to(tmp_path / "nowhere")
    assert run_command_line(["init", str(tmp_path)]) == 4
    assert run_command_line(["init", str(tmp_path / "x"), "--template", "perl"]) == 2
    (tmp_path / "file").write_text("")
    assert run_command_line(["init", str(tmp_path / "file")]) == 2


def test_bench_measures_and_drops_its_database(shell: Shell) -> None:
    before = shell.query(
        lambda c: c.fetch("select datname from pg_database where datname like 'holdfast_bench%'")
    )
    [response] = shell.json("bench", "--jobs", "200", "--samples", "20")
    assert response["drain_per_s"] > 0
    assert response["submit_many_per_s"] > 0
    assert 0 < response["result_ms"]["median"] <= response["result_ms"]["p95"]
    after = shell.query(
        lambda c: c.fetch("select datname from pg_database where datname like 'holdfast_bench%'")
    )
    assert len(after) <= len(before)
    assert shell.json("job", "list") == []


def test_top_prints_one_snapshot_as_text_and_json(shell: Shell) -> None:
    for _ in range(3):
        shell("submit", "[bold]t[/]", "-q", "q")
    shell.query(lambda c: ManualWorker(c, "ann", ["q"]).claim_tasks(1))
    output = shell("top", "--once")
    assert "ready 2   running 1" in output
    assert "[bold]t[/]" in output
    assert "ann" in output
    [response] = shell.json("top")
    assert (response["ready"], response["running"], len(response["running_jobs"])) == (2, 1, 1)


def test_top_refreshes_in_a_terminal(shell: Shell, url: Secret, tmp_path: Path) -> None:
    shell("submit", "shoot", "-q", "browser")
    environ = {"HOLDFAST_DATABASE_URL": url.reveal()}
    terminal = Terminal("top", "--interval", "200ms", environ=environ, folder=tmp_path)
    try:
        terminal.wait_for_text("browser .*! no worker +1 +0")
        terminal.wait_for_text("Workers")
        shell("submit", "shoot", "-q", "other")
        terminal.wait_for_text("other .*! no worker")
        mark = len(terminal.text)
        terminal.press("e")
        terminal.wait_for_text("Errors, last hour", after=mark)
        terminal.press(" ")
        terminal.wait_for_text("frozen; press space", after=mark)
        terminal.press("x")
        assert terminal.wait_for_end() == 0
        assert "Traceback" not in terminal.text
    finally:
        terminal.close()
    plain = Terminal("top", environ={**environ, "TERM": "dumb"}, folder=tmp_path)
    assert plain.wait_for_end() == 0
    assert "browser" in plain.text
    plain.close()


def test_top_pauses_a_queue_and_cancels_and_opens_a_job(shell: Shell, url: Secret, tmp_path: Path) -> None:
    job_id = shell("submit", "shoot", "x=1", "-q", "browser").strip()
    shell("submit", "mail", "-q", "another")
    shell.query(lambda c: ManualWorker(c, "ann", ["browser"]).claim_tasks(1))
    environ = {"HOLDFAST_DATABASE_URL": url.reveal()}
    terminal = Terminal("top", "--interval", "200ms", environ=environ, folder=tmp_path)
    try:
        terminal.wait_for_text("Workers")
        terminal.press("q")
        terminal.wait_for_text("p pause or resume")
        terminal.press("\x1b[B")  # down: from `another` to `browser`
        terminal.press("p")
        terminal.wait_for_text("Pause queue browser\\?")
        terminal.press("n")  # anything but y withdraws it
        terminal.press("p")
        terminal.press("y")
        terminal.wait_for_text("Queue browser is paused")
        assert shell.json("queue", "show", "browser")[0]["paused_at"]
        assert shell.json("queue", "show", "another")[0].get("paused_at") is None
        terminal.press("j")
        terminal.wait_for_text("enter open")
        terminal.press("\n")
        terminal.wait_for_text('"queue": "browser"|"type": "shoot"')
        terminal.press("\n")
        terminal.press("c")
        terminal.wait_for_text("Cancel job shoot")
        terminal.press("y")
        terminal.wait_for_text("is cancelled")
        terminal.press("x")
        assert terminal.wait_for_end() == 0
        assert "Traceback" not in terminal.text
    finally:
        terminal.close()
    assert shell.json("job", "show", job_id)[0]["status"] in {"cancelled", "cancelling", "running"}


def test_watch_draws_bars_in_a_terminal(shell: Shell, url: Secret, tmp_path: Path) -> None:
    job_id = shell("submit", "shoot", "-q", "q").strip()
    environ = {"HOLDFAST_DATABASE_URL": url.reveal()}
    terminal = Terminal("job", "watch", job_id, environ=environ, folder=tmp_path)
    try:
        terminal.wait_for_text("○ queued")

        async def finish(connection: Any) -> None:
            manual_worker = ManualWorker(connection)
            await manual_worker.finish_task(await manual_worker.claim_one_task(), "succeed", {"n": 7})

        shell.query(finish)
        assert terminal.wait_for_end() == 0
        assert "100%" in terminal.text
        assert '{"n":7}' in terminal.text
    finally:
        terminal.close()


def test_confirmation_in_a_terminal(shell: Shell, url: Secret, tmp_path: Path) -> None:
    job_id = shell("submit", "t", "-q", "q").strip()
    for key, code, status in (("n", 5, "queued"), ("y", 0, "cancelled")):
        terminal = Terminal(
            "job", "cancel", job_id, environ={"HOLDFAST_DATABASE_URL": url.reveal()}, folder=tmp_path
        )
        terminal.wait_for_text("Continue\\?")
        terminal.press(f"{key}\n")
        assert terminal.wait_for_end() == code, terminal.text
        terminal.close()
        assert shell.json("job", "show", job_id)[0]["status"] == status


def test_completion_suggests_names_from_the_database(shell: Shell, url: Secret) -> None:
    shell("submit", "shoot", "-q", "browser")

    def completed(words: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast"],
            env={"_HOLDFAST_COMPLETE": "bash_complete", "COMP_WORDS": words, "PATH": os.environ["PATH"],
                 "COMP_CWORD": str(len(words.split(" ")) - 1), "DATABASE_URL": url.reveal()},
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        assert not done.stderr
        return [line.partition(",")[2] for line in done.stdout.splitlines()]

    assert completed("holdfast queue pause br") == ["browser"]
    assert len(completed("holdfast job show ")) == 1
    assert completed("holdfast job sh") == ["show"]


def test_completion_prints_nothing_without_a_database(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast"],
        env={"_HOLDFAST_COMPLETE": "bash_complete", "COMP_WORDS": "holdfast queue pause x", "COMP_CWORD": "3",
             "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none", "PATH": os.environ["PATH"]},
        capture_output=True, text=True, check=True, timeout=60, cwd=tmp_path,
    )  # fmt: skip
    assert (done.stdout.strip(), done.stderr) == ("", "")


def test_version_schema_and_openapi(capsys: Captured, tmp_path: Path) -> None:
    assert run_command_line(["version"]) == 0
    assert capsys.readouterr().out.startswith(f"holdfast {__version__} ")
    (tmp_path / "an_app.py").write_text(
        "from holdfast import task\n@task\ndef add(a: int, b: int = 2) -> int:\n    return a + b\n"
    )
    assert run_command_line(["schema", "add", "--app", str(tmp_path / "an_app.py")]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["required"] == ["a"]
    assert run_command_line(["schema", "subtract", "--app", str(tmp_path / "an_app.py")]) == 3
    assert "It defines: add." in capsys.readouterr().err
    assert run_command_line(["openapi"]) == 0
    assert json.loads(capsys.readouterr().out)["openapi"].startswith("3.1")


def test_job_type_is_submitted_like_a_task(shell: Shell, tmp_path: Path) -> None:
    app = tmp_path / "typed_job.py"
    app.write_text(
        "import msgspec\nfrom holdfast import Graph, task\nfrom holdfast.definitions.job_types import job\n"
        "class Order(msgspec.Struct):\n    pages: int\n    title: str = 'x'\n"
        "@task(queue='sums')\ndef page(n: int) -> int:\n    return n\n"
        "@job('report', params=Order)\ndef report(order: Order) -> Graph:\n    g = Graph('report')\n"
        "    [g.add(page(n)) for n in range(order.pages)]\n    return g\n"
    )
    assert has_job_types(str(app))
    assert not has_job_types(str(tmp_path / "nowhere.py"))
    job_id = shell("submit", "report", "--app", str(app), "pages=3", "title=7").strip()
    [shown] = shell.json("job", "show", job_id)
    assert (shown["type"], len(shown["tasks"])) == ("report", 3)
    assert shown["params"] == {"pages": 3, "title": "7"}
    assert json.loads(shell("schema", "report", "--app", str(app)))["required"] == ["pages"]
    assert "params" in shell("submit", "report", "--app", str(app), "pages=many", code=2)


def test_text_is_converted_to_the_types_of_the_schema(shell: Shell, tmp_path: Path) -> None:
    app = tmp_path / "typed_app.py"
    app.write_text(
        "from holdfast import task\n@task(queue='sums', retries=7)\n"
        "def add(a: int, b: float, deep: bool, name: str, more: int | None = None) -> int:\n    return a\n"
    )
    words = ["a=5", "b=1.5", "deep=true", "name=7", "more=9"]
    job_id = shell("submit", "add", "--app", str(app), *words).strip()
    [shown] = shell.json("job", "show", job_id)
    assert shown["params"] == {"a": 5, "b": 1.5, "deep": True, "name": "7", "more": 9}
    assert shown["tasks"][0]["queue"] == "sums"
    assert json.loads(shell("job", "rerun", job_id, "--print"))["attempts"] == 8

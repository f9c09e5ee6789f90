"""Serve one HTTP API over several shards: send each request to the shard it is about, or to all of them.

- A path with the id of a job, task, batch, file or webhook goes to the shard of the id.
- Schedules and message queues have one shard each, which their name decides.
- Lists and numbers are read from all shards at once and merged. A shard that does not answer in time is left
  out, and the response names it.
- Changes that must hold everywhere, such as pausing a queue, are made on all shards.
- The parameter `shard` selects one shard for any request.
- Submits choose their shard when their body is known (`use_submit_shard`).
- Everything else is served by the first shard, such as sessions of people and routes of systems.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import parse_qsl, unquote, urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.client.shard_merging import (
    MergeFunction,
    add_up_objects,
    add_up_rows,
    concatenate,
    merge_lists_of,
    merge_metrics,
    merge_pages,
)
from holdfast.client.shard_router import FAN_OUT_TIMEOUT_S
from holdfast.errors import HoldfastError, InvalidError, RefusedError
from holdfast.model import Json
from holdfast.server.api.json_responses import json_response
from holdfast.server.api.problem_responses import handle_holdfast_error, problem_response
from holdfast.server.api.services import SERVICES_ASGI_SCOPE_KEY, AppServices, ShardServices, get_services
from holdfast.storage.public_links import RequestPrefix
from holdfast.storage.signed_links import FileLinkSigner

SHARD_HEADER: Final = "holdfast-shard"
MISSING_SHARDS_HEADER: Final = "holdfast-missing-shards"
SELECTED_SHARD_SCOPE_KEY: Final = "holdfast.selected_shard"
MAX_CHANGE_BODY_BYTES: Final = 1_000_000
_UUID: Final = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
_ID_PATH: Final = re.compile(
    rf"/api/(?:jobs|tasks|batches|artifacts|webhooks|alerts|alert-silences|bulk-actions)/({_UUID})(?:/.*)?"
)
_SCHEDULE_PATH: Final = re.compile(r"/api/schedules/([^/]+)(?:/\w+)?")
_MESSAGE_QUEUE_PATH: Final = re.compile(r"/api/messages/([^/]+)(?:/\w+)?")
_SIGNED_FILE_PATH: Final = re.compile(r"/files/([^/]+)")
_SUBMIT_PATHS: Final = frozenset({"/api/jobs", "/api/jobs/start", "/api/batches"})

# Read from all shards and merged. Those that do not answer are left out.
_READS: Final[list[tuple[str, MergeFunction]]] = [
    (r"/api/jobs", merge_pages("jobs", 50)),
    (r"/api/search", merge_pages("rows", 50)),
    (r"/api/artifacts", merge_pages("artifacts", 100)),
    (r"/api/bulk-actions", concatenate("id", newest=True)),
    (r"/api/errors", add_up_rows("cause", newest_first="last_at")),
    (r"/api/queues", add_up_rows("queue")),
    (r"/api/queues/[^/]+", add_up_objects),
    (r"/api/queues/[^/]+/scale", add_up_objects),
    (r"/api/limits", add_up_rows("name")),
    (r"/api/workers", concatenate("name")),
    (r"/api/workers/[^/]+/tasks", concatenate("id")),
    (r"/api/task-types", add_up_rows("type")),
    (r"/api/schedules", concatenate("name")),
    (r"/api/messages", concatenate("queue")),
    (r"/api/webhooks", concatenate("id")),
    (r"/api/alerts", concatenate("rule")),
    (r"/api/alert-silences", concatenate("until")),
    (r"/api/usage", add_up_objects),
    (r"/api/stats", add_up_objects),
    (r"/metrics", merge_metrics),
    (r"/readyz", add_up_objects),
]
# Made on all shards. One that does not answer is an error, after the others have made the change.
_CHANGES: Final[list[tuple[str, str]]] = [
    ("POST", r"/api/queues/[^/]+/(?:pause|resume)"),
    ("PUT", r"/api/limits/[^/]+"),
    ("DELETE", r"/api/limits/[^/]+"),
    ("PUT", r"/api/alert-rules/[^/]+"),
    ("DELETE", r"/api/alert-rules/[^/]+"),
    ("POST", r"/api/workers/[^/]+/command"),
    ("POST", r"/api/bulk-actions"),
]
# Changes whose response is about all shards.
_MERGED_CHANGES: Final[dict[str, MergeFunction]] = {"/api/bulk-actions": merge_lists_of("actions")}
# Refused without the parameter `shard`.
_NEEDS_SHARD: Final[list[tuple[str, str]]] = [
    ("POST", r"/api/webhooks"),
    ("POST", r"/api/worker/claim"),
    ("POST", r"/api/alert-silences"),
    ("GET", r"/api/alert-rules"),
    ("GET", r"/api/audit"),
    ("GET", r"/api/erasures"),
]
_SHARED_LIMIT_ERROR: Final = RefusedError(
    "A limit over all shards cannot be kept: each shard would allow all of it.",
    fix="Set per_key, because a key is on one shard, or set a share on each shard with ?shard=1.",
    field="per_key",
)


@dataclass
class ShardResponse:
    """The response of one shard."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    @property
    def has_failed(self) -> bool:
        return self.status >= 500

    def decode(self) -> Any:
        is_text = any(name == b"content-type" and value.startswith(b"text/") for name, value in self.headers)
        return self.body.decode() if is_text else msgspec.json.decode(self.body)

    def build(self) -> Response:
        response = Response(self.body, self.status)
        response.raw_headers = [*self.headers]
        return response


class ShardRequestMiddleware:
    """ASGI middleware that gives each request the services of its shard, or asks all shards."""

    def __init__(self, app: ASGIApp, shards: ShardServices) -> None:
        self._app = app
        self._shards = shards
        self._late: set[asyncio.Task[ShardResponse]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with RequestPrefix(scope.get("root_path", "")):
            if scope["type"] not in ("http", "websocket"):
                await self._app(scope, receive, send)
                return
            scope[SERVICES_ASGI_SCOPE_KEY] = self._shards.first
            try:
                handle = await self._choose_handler(scope)
            except HoldfastError as error:
                response = await handle_holdfast_error(Request(scope), error)
                await response(scope, receive, send)
                return
            await handle(scope, receive, send)

    async def _choose_handler(self, scope: Scope) -> ASGIApp:
        path, method = get_path(scope), scope.get("method", "GET")
        number = await self._find_shard(scope, path)
        if number is not None:
            await self._shards.router.open_shard(number)
            scope[SERVICES_ASGI_SCOPE_KEY] = self._shards.by_number[number]
            return self._send_with_shard_number(number)
        for pattern, merge in _READS:
            if method == "GET" and re.fullmatch(pattern, path):
                return self._create_read(merge)
        if _matches(_CHANGES, method, path):
            return self._change_all
        if _matches(_NEEDS_SHARD, method, path):
            raise RefusedError(
                "This request needs one shard, and there are several.",
                fix=f"Add the parameter shard: {path}?shard={next(iter(self._shards.by_number))}.",
                field="shard",
            )
        if method == "POST" and path in _SUBMIT_PATHS:  # what submits does not wait for a dead first shard
            reachable = await self._shards.router.find_reachable_shard()
            scope[SERVICES_ASGI_SCOPE_KEY] = self._shards.by_number[reachable]
        return self._app

    async def _find_shard(self, scope: Scope, path: str) -> int | None:
        """Return the shard that a request names, by the parameter `shard`, an id or a name."""
        selected = _take_shard_parameter(scope, self._shards.by_number)
        router = self._shards.router
        if selected is not None:
            scope[SELECTED_SHARD_SCOPE_KEY] = selected
            return selected
        if match := _ID_PATH.fullmatch(path):
            return router.find_id_shard(match[1])
        if match := _SCHEDULE_PATH.fullmatch(path):
            return await router.find_schedule_shard(unquote(match[1]))
        if match := _MESSAGE_QUEUE_PATH.fullmatch(path):
            return await router.find_message_queue_shard(unquote(match[1]))
        if match := _SIGNED_FILE_PATH.fullmatch(path):
            signer = FileLinkSigner.from_settings(self._shards.first.settings)
            return router.find_id_shard(signer.verify_token(match[1]).artifact)
        return None

    def _send_with_shard_number(self, number: int) -> ASGIApp:
        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            async def send_with_number(message: Message) -> None:
                if message["type"] == "http.response.start":
                    number_header = (SHARD_HEADER.encode(), str(number).encode())
                    message["headers"] = [*message.get("headers", ()), number_header]
                await send(message)

            await self._app(scope, receive, send_with_number)

        return serve

    # All shards

    def _create_read(self, merge: MergeFunction) -> ASGIApp:
        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            answers, missing = await self._ask_all(scope, b"")
            response = self._merge_responses(scope, merge, answers, missing)
            await response(scope, receive, send)

        return serve

    def _merge_responses(
        self, scope: Scope, merge: MergeFunction, answers: dict[int, ShardResponse], missing: list[int]
    ) -> Response:
        successes = {number: answer for number, answer in answers.items() if answer.status == 200}
        refusals = [answer for answer in answers.values() if 300 <= answer.status < 500]
        if not successes and refusals:
            return refusals[0].build()
        if any(answer.status != 404 for answer in refusals):  # such as 401 and 422, which all shards give
            return next(answer for answer in refusals if answer.status != 404).build()
        if not successes:
            return problem_response(503, "No shard answered")
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        merged = merge({number: answer.decode() for number, answer in successes.items()}, query)
        headers = {MISSING_SHARDS_HEADER: ", ".join(map(str, missing))} if missing else {}
        if isinstance(merged, str):
            text = merged + self._shards.first.metrics.format_text()
            answer = next(iter(successes.values()))
            headers["content-type"] = dict(answer.headers)[b"content-type"].decode()
            return Response(text, 200, headers)
        if isinstance(merged, dict):
            merged = {**cast("dict[str, Any]", merged), "missing_shards": missing}
        return json_response(merged, headers=headers)

    async def _change_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _read_body(receive)
        if scope["method"] == "PUT" and _is_shared_limit(body):
            await (await handle_holdfast_error(Request(scope), _SHARED_LIMIT_ERROR))(scope, receive, send)
            return
        answers, missing = await self._ask_all(scope, body)
        failures = [answer for answer in answers.values() if answer.status >= 400]
        successes = [answer for answer in answers.values() if answer.status < 400]
        if missing:
            names = ", ".join(map(str, missing))
            done = ", ".join(str(n) for n, answer in answers.items() if answer.status < 400) or "none"
            response = problem_response(
                503,
                "A shard did not answer",
                f"Shards that did not answer: {names}. Shards with the change: {done}. Send it again.",
                headers={MISSING_SHARDS_HEADER: names},
            )
        else:
            refused = [answer for answer in failures if answer.status != 404 or not successes]
            merge = _MERGED_CHANGES.get(get_path(scope))
            if merge is not None and not refused:
                merged = merge({number: answer.decode() for number, answer in answers.items()}, {})
                response = json_response(merged, successes[0].status)
            else:
                response = (refused or _prefer_changed(successes))[0].build()
        await response(scope, receive, send)

    async def _ask_all(self, scope: Scope, body: bytes) -> tuple[dict[int, ShardResponse], list[int]]:
        """Send a request to all shards at once. Return the responses, and the shards without one."""
        tasks = {
            number: asyncio.create_task(self._ask_one(scope, body, number))
            for number in self._shards.by_number
        }
        done, late = await asyncio.wait(tasks.values(), timeout=FAN_OUT_TIMEOUT_S)
        for task in late:  # not awaited: a frozen server also holds up the end of its statement
            self._late.add(task)
            task.add_done_callback(self._late.discard)
            task.cancel()
        answers = {number: task.result() for number, task in tasks.items() if task in done}
        missing = [number for number in tasks if number not in answers or answers[number].has_failed]
        return {number: answers[number] for number in answers if number not in missing}, missing

    async def _ask_one(self, scope: Scope, body: bytes, number: int) -> ShardResponse:
        response = ShardResponse(500, [], b"")
        own_scope = {**scope, "headers": list(scope["headers"])}
        own_scope[SERVICES_ASGI_SCOPE_KEY] = self._shards.by_number[number]

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def collect(message: Message) -> None:
            if message["type"] == "http.response.start":
                response.status, response.headers = message["status"], [*message.get("headers", ())]
            elif message["type"] == "http.response.body":
                response.body += message.get("body", b"")

        try:
            await self._shards.router.open_shard(number)
            await self._app(own_scope, receive, collect)
        except HoldfastError as error:
            await (await handle_holdfast_error(Request(scope), error))(own_scope, receive, collect)
        return response


async def use_submit_shard(request: Request, job: Mapping[str, Json], owner: str | None = None) -> None:
    """Let the rest of a request use the shard that a job goes to. Without shards, do nothing."""
    services = get_services(request)
    if services.shards is None or SELECTED_SHARD_SCOPE_KEY in request.scope:
        return
    router = services.shards.router
    number = await router.find_submit_shard({**job, "owner": owner} if owner is not None else job)
    await router.open_shard(number)
    request.scope[SERVICES_ASGI_SCOPE_KEY] = services.shards.by_number[number]


def get_path(scope: Scope) -> str:
    """Return the path of a request below the path where the application is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    return path[len(root) :] if root and path.startswith(root) else path


def _take_shard_parameter(scope: Scope, known: Mapping[int, AppServices]) -> int | None:
    """Remove the parameter `shard` from the query of a request and return its value, or None."""
    query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    values = [value for name, value in query if name == "shard"]
    if not values or not get_path(scope).startswith(("/api/", "/metrics", "/readyz", "/rest/")):
        return None
    if len(values) > 1 or values[0] not in {str(number) for number in known}:
        names = ", ".join(map(str, known))
        raise InvalidError("This shard does not exist.", fix=f"The shards are {names}.", field="shard")
    rest = [(name, value) for name, value in query if name != "shard"]
    scope["query_string"] = urlencode(rest, encoding="latin-1").encode()
    return int(values[0])


def _matches(routes: list[tuple[str, str]], method: str, path: str) -> bool:
    return any(method == each and re.fullmatch(pattern, path) for each, pattern in routes)


async def _read_body(receive: Callable[[], Awaitable[Message]]) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if not message.get("more_body") or len(body) > MAX_CHANGE_BODY_BYTES:
            return body


def _is_shared_limit(body: bytes) -> bool:
    """Return whether a request sets a limit over all keys, which each shard would allow all of."""
    try:
        limit = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return False  # the endpoint says what is wrong
    return isinstance(limit, dict) and not limit.get("per_key")  # pyright: ignore[reportUnknownMemberType]


def _prefer_changed(answers: list[ShardResponse]) -> list[ShardResponse]:
    """Put a response that reports a change first: `changed` or `alive` of one shard counts for all."""
    return sorted(answers, key=lambda answer: b"true" not in answer.body)

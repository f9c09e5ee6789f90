"""Endpoints for background work: the queue consumer for cron jobs, and the two steps for services."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import wraps
from typing import Any, Final
from uuid import UUID

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast import Client
from holdfast.errors import ConflictError, InvalidError, NotFoundError, TooManyRequestsError
from holdfast.server import (
    Endpoint,
    api_operation,
    get_client,
    get_settings,
    identify_caller,
    json_response,
    parse_body,
)
from holdfast.systems.bookmarks import processing_queries, queries
from holdfast.systems.bookmarks.bookmark_endpoints import BOOKMARKS_API_PATH
from holdfast.systems.bookmarks.bookmark_urls import parse_bookmark_url
from holdfast.systems.bookmarks.http_responses import Bookmark, build_bookmarks
from holdfast.systems.bookmarks.messages import MAX_BOOKMARK_ID
from holdfast.systems.bookmarks.processing import MESSAGE_LEASE, MessageProcessor
from holdfast.systems.bookmarks.processing_queries import BookmarkState, StepName
from holdfast.systems.bookmarks.queue_consumer import QueueRun, QueueSummary
from holdfast.systems.bookmarks.shared_capture import OpenCapture, SharedCapture
from holdfast.systems.bookmarks.steps import StepOutcome
from holdfast.systems.request_context import get_systems_schema, is_uuid, require_owner_id

TASKS_API_PATH: Final = f"{BOOKMARKS_API_PATH}/add/tasks"
MAX_RUNS_AT_ONCE: Final = 4  # of one API process; all share one browser
TOO_MANY_RUNS_RETRY_AFTER_S: Final = 15
RESPONSE_TIME_RESERVE: Final = timedelta(seconds=5)
STEP_RESPONSES: Final = {
    404: "The bookmark does not exist or belongs to another user",
    409: "The step is running",
    502: "The step failed",
}


class ScreenshotRequest(msgspec.Struct, rename="camel"):
    """A bookmark whose screenshot is missing."""

    id: int
    url: str
    user_id: str


class RemainingDataRequest(msgspec.Struct, rename={"user_id": "userId", "fav_icon": "favIcon"}):
    """A bookmark whose image, text and icon are missing."""

    id: int
    url: str
    user_id: str
    fav_icon: str | None = None


class StepResponse(msgspec.Struct, kw_only=True):
    """The answer of a step that succeeded."""

    success: bool
    data: Bookmark


class TaskEndpoints:
    """HTTP endpoints that do the work of the worker during a request."""

    def __init__(self, open_capture: OpenCapture) -> None:
        self._capture = SharedCapture(open_capture)
        self._running = 0

    def create_routes(self) -> list[BaseRoute]:
        consume = api_operation(
            "Process up to ten messages of the queue (users: their own)",
            tag="bookmarks",
            scope="jobs",
            response=QueueSummary,
        )(self.consume_queue)
        consume_for_cron = api_operation(
            "Process up to ten messages of the queue (services and cron jobs)",
            tag="bookmarks",
            access="service",
            scope="jobs",
            response=QueueSummary,
        )(self.consume_queue)
        screenshot = _declare_step(
            self.take_screenshot, "Take the screenshot of a bookmark", ScreenshotRequest
        )
        remaining = _declare_step(
            self.collect_remaining_data,
            "Collect the image, text and icon of a bookmark",
            RemainingDataRequest,
        )
        consumer_path = f"{TASKS_API_PATH}/queue-consumer"
        return [
            Route(consumer_path, self._admit_cron_secret(consume), methods=["POST"]),
            Route(consumer_path, self._admit_cron_secret(consume_for_cron), methods=["GET"]),
            Route(f"{TASKS_API_PATH}/screenshot", screenshot, methods=["POST"]),
            Route(f"{TASKS_API_PATH}/remaining", remaining, methods=["POST"]),
        ]

    def _admit_cron_secret(self, endpoint: Endpoint) -> Endpoint:
        """Decorate an endpoint, so that a request with the cron secret is treated as one of a service."""

        @wraps(endpoint)
        async def choose_caller(request: Request) -> Response:
            if has_cron_secret(request):
                return await self._consume(request, None)
            return await endpoint(request)

        return choose_caller

    async def consume_queue(self, request: Request) -> Response:
        caller = await identify_caller(request)
        user_id = await require_owner_id(request) if caller.kind == "user" else None
        return await self._consume(request, user_id)

    async def _consume(self, request: Request, user_id: str | None) -> Response:
        async def run(client: Client, processor: MessageProcessor) -> Response:
            time_limit = get_settings(request).api_timeout - RESPONSE_TIME_RESERVE
            queue_run = QueueRun(client, processor, time_limit=time_limit, user_id=user_id)
            return json_response(await queue_run.process_messages())

        return await self._with_processor(request, run)

    async def take_screenshot(self, request: Request) -> Response:
        body = await parse_body(request, ScreenshotRequest)

        async def run(processor: MessageProcessor, state: BookmarkState) -> StepOutcome:
            return await processor.steps.take_screenshot(state, body.url)

        return await self._run_step(request, "screenshot", body, run)

    async def collect_remaining_data(self, request: Request) -> Response:
        body = await parse_body(request, RemainingDataRequest)

        async def run(processor: MessageProcessor, state: BookmarkState) -> StepOutcome:
            return await processor.steps.collect_remaining_data(state, body.url, body.fav_icon)

        return await self._run_step(request, "remaining", body, run)

    async def _run_step(
        self,
        request: Request,
        step: StepName,
        body: ScreenshotRequest | RemainingDataRequest,
        run: Callable[[MessageProcessor, BookmarkState], Awaitable[StepOutcome]],
    ) -> Response:
        """Run one step, unless it has succeeded or is not needed, and return the bookmark."""
        schema = get_systems_schema(request)
        state = await _find_owned_bookmark(request, body)

        async def run_and_respond(client: Client, processor: MessageProcessor) -> Response:
            if get_step_status(state, step) not in ("succeeded", "skipped"):
                await _claim_step(client, schema, state, step)
                outcome = await run(processor, state)
                if not outcome.succeeded:
                    raise HTTPException(502, outcome.error or "The step failed.")
            async with client.transaction() as connection:
                await processing_queries.complete_if_finished(connection, schema, state.id)
                row = await queries.find_bookmark(connection, schema, state.id, str(state.user_id))
            if row is None:
                raise NotFoundError(f"Bookmark {state.id} does not exist.")
            [bookmark] = await build_bookmarks(client, [row])
            return json_response(StepResponse(success=True, data=bookmark))

        return await self._with_processor(request, run_and_respond)

    async def _with_processor(
        self, request: Request, run: Callable[[Client, MessageProcessor], Awaitable[Response]]
    ) -> Response:
        if self._running >= MAX_RUNS_AT_ONCE:
            raise TooManyRequestsError(
                f"{self._running} requests are processing bookmarks at the moment.",
                fix="Try again later, or run a worker.",
                retry_after=TOO_MANY_RUNS_RETRY_AFTER_S,
            )
        self._running += 1
        try:
            client = get_client(request)
            async with self._capture.use(client) as capture:
                return await run(client, MessageProcessor(client, capture))
        finally:
            self._running -= 1


def has_cron_secret(request: Request) -> bool:
    """Return whether the bearer token of a request is the setting `cron_secret`."""
    secret = get_settings(request).cron_secret
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if secret is None or scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(token.strip().encode(), secret.reveal().encode())


def get_step_status(state: BookmarkState, step: StepName) -> str:
    """Return the status of a step of a bookmark."""
    return state.screenshot_status if step == "screenshot" else state.remaining_status


def _declare_step(endpoint: Any, summary: str, body: type) -> Any:
    return api_operation(
        summary,
        tag="bookmarks",
        access="service",
        scope="jobs",
        body=body,
        response=StepResponse,
        other_responses=STEP_RESPONSES,
    )(endpoint)


async def _find_owned_bookmark(
    request: Request, body: ScreenshotRequest | RemainingDataRequest
) -> BookmarkState:
    parse_bookmark_url(body.url)
    if not is_uuid(body.user_id):
        raise InvalidError("userId must be a UUID.", field="userId")
    state = None
    if 0 < body.id <= MAX_BOOKMARK_ID:
        async with get_client(request).connection() as connection:
            state = await processing_queries.find_bookmark_state(
                connection, get_systems_schema(request), body.id, UUID(body.user_id)
            )
    if state is None:
        raise NotFoundError(f"Bookmark {body.id} of this user does not exist.")
    return state


async def _claim_step(client: Client, schema: str, state: BookmarkState, step: StepName) -> None:
    async with client.connection() as connection:
        if not await processing_queries.claim_step(connection, schema, state.id, step, MESSAGE_LEASE):
            raise ConflictError(f"The step {step} of bookmark {state.id} is running.", fix="Try again later.")

"""Routes that take precedence over the built-in routes of the API."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route


class PriorityRoute(Route):
    """A route that is matched before the built-in routes of the API.

    Use a priority route to replace a built-in endpoint. Call `call_built_in_endpoint` for requests that you
    do not handle.

    >>> from starlette.requests import Request
    >>> from starlette.responses import Response
    >>> from holdfast.server import PriorityRoute, call_built_in_endpoint, json_response
    >>> async def get_job(request: Request) -> Response:
    ...     if request.path_params["id"] == "latest":
    ...         return json_response({"id": "latest"})
    ...     return await call_built_in_endpoint(request)
    >>> routes = [PriorityRoute("/api/jobs/{id}", get_job)]  # create_app(routes=routes)
    """


async def call_built_in_endpoint(request: Request) -> Response:
    """Call the built-in endpoint of the API that has the path and method of the request.

    The endpoint checks the caller again. The request counts once against the rate limit, and its body can be
    read again if you read it with `read_body` or `read_json_body`. Raise 404 if there is no such endpoint.

    >>> from starlette.requests import Request
    >>> from starlette.responses import Response
    >>> from holdfast.server import call_built_in_endpoint, identify_caller, json_response
    >>> async def list_jobs(request: Request) -> Response:  # PriorityRoute("/api/jobs", list_jobs)
    ...     if (await identify_caller(request)).kind == "service":
    ...         return await call_built_in_endpoint(request)
    ...     return json_response({"jobs": []})
    """
    for route in request.app.routes:
        if isinstance(route, Route) and not isinstance(route, PriorityRoute):
            match, child_scope = route.matches(request.scope)
            if match is Match.FULL:
                response: Response = await route.endpoint(
                    Request({**request.scope, **child_scope}, request.receive)
                )
                return response
    raise HTTPException(404, "Not found")

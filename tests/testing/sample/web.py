"""The web application of the shop, created at import time as applications do."""

from __future__ import annotations

from shop import client
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from holdfast.server import create_app


async def save_invoice(request: Request) -> JSONResponse:
    file = await client.files.put("invoice.txt", await request.body(), "text/plain")
    return JSONResponse({"link": await client.files.create_download_link(file, 600)})


api = create_app()
app = Starlette(routes=[Route("/invoices", save_invoice, methods=["POST"]), Mount("/", api)])

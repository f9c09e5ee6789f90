"""Forged tokens: wrong algorithms, keys and claims, broken encodings, and subjects that look like another."""

from __future__ import annotations

import json
from typing import Any

import httpx
from api_clients import bearer_headers, make_claims
from forged_tokens import encode_base64url, encode_unchecked, make_forged_tokens, make_hs256_token

from attack.attacks.attack import Attack
from attack.findings import AttackLog
from attack.population import find_marker
from attack.target import Product

PATHS = ("/api/jobs", "/api/v1/export/history", "/rest/v1/rpc/list_jobs", "/api/usage")
DUPLICATE_ALGORITHM = b'{"alg": "HS256", "alg": "none"}'
HEADER_NAMES = ("authorization", "apikey")


def make_subject_variants(user: str) -> dict[str, Any]:
    """Return subjects that a careless comparison takes for the user."""
    return {
        "sub in upper case": user.upper(),
        "sub in braces": "{" + user + "}",
        "sub without hyphens": user.replace("-", ""),
        "sub as URN": f"urn:uuid:{user}",
        "sub with a space": f" {user}",
        "sub with a line break": f"{user}\n",
        "sub with NUL": f"{user}\0",
        "sub with a lone surrogate": f"{user}\ud800",
        "sub as list": [user],
        "sub as object": {"id": user},
        "sub with a wildcard": "%",
        "sub with a quote": "' or 'a'='a",
    }


def make_more_forged_tokens(user: str) -> dict[str, str]:
    """Return forged tokens that name the user: duplicate claims, huge ones, and confused encodings."""
    claims = make_claims(user)
    body = encode_base64url(claims)
    duplicate = (
        b'{"sub": "somebody", '
        + json.dumps(claims).encode()[1:-1]
        + b', "sub": "'
        + user.encode()
        + b'", "exp": 1}'
    )
    return {
        "duplicate claims": encode_unchecked({"alg": "HS256"}, duplicate),
        "duplicate alg": f"{encode_base64url(DUPLICATE_ALGORITHM)}.{body}.",
        "huge": make_hs256_token(sub=user, filler="x" * 200_000),
        "many dots": ".".join([body] * 1000),
        "not ASCII": f"{body}\u00e9.{body}.{body}",
        "wrapped twice": encode_base64url(make_hs256_token(sub=user).encode()),
        "Basic": "Basic " + encode_base64url(f"{user}:".encode()),
    }


async def attack_tokens(product: Product, log: AttackLog) -> None:
    ann = product.users["ann"]
    forged = {**make_forged_tokens(), **make_more_forged_tokens(ann.id)}
    for name, token in forged.items():
        for header in HEADER_NAMES:
            for path in PATHS if not product.is_short else PATHS[:1]:
                value = f"Bearer {token}" if header == "authorization" else token
                headers: dict[str, Any] = {header: value.encode("utf-8", "surrogatepass")}
                headers["accept-profile"] = "holdfast"
                try:
                    response = await product.send("GET", path, headers)
                except httpx.TransportError:
                    log.checks += 1  # a header that is too long ends the connection
                    continue
                refused = response.status_code in (400, 401, 431)
                log.check_response(refused, response, f"{header} {name}", "expected 401")
    for name, subject in make_subject_variants(ann.id).items():
        sent = {**bearer_headers(make_hs256_token(sub=subject)), "accept-profile": "holdfast"}
        for path in PATHS:
            response = await product.send("GET", path, sent)
            log.check_response(response.status_code < 500, response, name, "server error")
            leaked = find_marker(ann, response)
            log.check_response(leaked is None, response, name, f"shows data of ann: {leaked}")


ATTACK = Attack("tokens", "forged tokens and subjects that look like another user's", attack_tokens)

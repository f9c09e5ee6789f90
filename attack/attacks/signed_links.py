"""Signed links: every changed character, other owners, other paths, and use after the file was deleted."""

from __future__ import annotations

import string
from collections.abc import Iterator
from urllib.parse import quote

from forged_tokens import encode_base64url

from attack.attacks.attack import Attack
from attack.attacks.route_access import run_in_parallel
from attack.findings import AttackLog
from attack.identities import User
from attack.population import plant_user
from attack.target import Product

ALPHABET = string.ascii_letters + string.digits + "-_."


async def get_link(product: Product, user: User, headers: dict[str, str]) -> str | None:
    response = await product.send("GET", f"/api/artifacts/{user.ids['artifact']}/link", headers)
    return str(response.json()["url"]) if response.status_code == 200 else None


def iterate_changed_tokens(token: str, *, is_short: bool) -> Iterator[tuple[str, str]]:
    """Yield changed tokens with a description. In a full dose, two changes of every character."""
    payload, _, signature = token.partition(".")
    for position in range(0, len(token), 7 if is_short else 1):
        for replacement in (ALPHABET[position % len(ALPHABET)], "A" if token[position] != "A" else "B"):
            if replacement != token[position]:
                changed = token[:position] + replacement + token[position + 1 :]
                yield f"character {position} is {replacement!r}", changed
    yield from {
        "no signature": f"{payload}.",
        "no dot": payload + signature,
        "signature of nothing": f".{signature}",
        "padded": f"{token}=",
        "line break": f"{token}\n",
        "cut": token[:-1],
        "twice": f"{token}.{token}",
        "path": f"../{token}",
        "another payload": f"{encode_base64url(b'[]')}.{signature}",
        "too long": token * 40,
        "not ASCII": f"{token}\u00e9",
    }.items()


async def attack_links(product: Product, log: AttackLog) -> None:
    ann, bob = product.users["ann"], product.users["bob"]
    link = await get_link(product, ann, ann.headers)
    assert link is not None, "ann got no link to her own file"
    token = link.rpartition("/files/")[2]
    log.check(await get_link(product, ann, bob.headers) is None, "bob got a link to a file of ann", link)
    log.check(await get_link(product, ann, {}) is None, "a stranger got a link to a file of ann", link)
    good = await product.send("GET", link, {})
    log.check_response(good.status_code == 200 and ann.marker in good.text, good, "ann", "the link works")

    async def attempt(name: str, changed: str) -> None:
        response = await product.send("GET", f"/files/{quote(changed, safe='')}", {})
        passed = response.status_code in (400, 404, 410, 414) and ann.marker not in response.text
        log.check_response(passed, response, name, "a changed link opened a file")

    changes = iterate_changed_tokens(token, is_short=product.is_short)
    await run_in_parallel(attempt(name, changed) for name, changed in changes)
    for suffix in ("?x=1", "?expires=9999999999", "/", "/..", "%00", "#x?y"):
        response = await product.send("GET", link + suffix, {})
        opened = response.status_code == 200 and ann.marker in response.text and not suffix.startswith("#")
        log.check_response(not opened, response, suffix, "a parameter was ignored")
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        response = await product.send(method, link, {})
        log.check_response(response.status_code in (404, 405), response, method, "only GET is signed")
    await attack_after_deletion(product, log)


async def attack_after_deletion(product: Product, log: AttackLog) -> None:
    """Use a link after its file was deleted: it must not work any more."""
    owner = await plant_user(product, "erin") if not product.is_short else product.users["bob"]
    link = await get_link(product, owner, owner.headers)
    assert link is not None, "the owner got no link"
    deleted = await product.send("DELETE", f"/api/artifacts/{owner.ids['artifact']}", owner.headers)
    log.check_response(deleted.status_code == 204, deleted, "owner", "the owner may delete a file")
    response = await product.send("GET", link, {})
    gone = response.status_code in (404, 410) and owner.marker not in response.text
    log.check_response(gone, response, "link after deletion", "the link outlives its file")


ATTACK = Attack("links", "signed links with every change, by other owners, and after deletion", attack_links)

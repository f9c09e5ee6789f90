"""The policy: allow-list, resolved names, settings. No setting turns the guard off."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.egress import (
    EgressAllowlist,
    EgressDnsError,
    EgressPolicy,
    EgressRefusedError,
    EgressTimeoutError,
)
from holdfast.egress.policy import Resolver
from holdfast.errors import SettingsError
from holdfast.settings import Settings, load_settings


def resolve_to(*addresses: str) -> Resolver:
    async def resolver(_: str) -> list[str]:
        return list(addresses)

    return resolver


def create_policy(allowlist: str = "", *addresses: str) -> EgressPolicy:
    return EgressPolicy(
        allowlist=EgressAllowlist.parse(allowlist), resolver=resolve_to(*addresses) if addresses else None
    )


@pytest.mark.parametrize(
    "addresses", [("1.1.1.1", "10.0.0.1"), ("10.0.0.1", "1.1.1.1"), ("1.1.1.1", "::1"), ("fd00::1",),
                  ("1.1.1.1", "::ffff:127.0.0.1"), ("fe80::1%eth0",), ("168.63.129.16",)]
)  # fmt: skip
async def test_a_name_with_one_private_address_is_refused(addresses: tuple[str, ...]) -> None:
    with pytest.raises(EgressRefusedError, match="public internet"):
        await create_policy("", *addresses).resolve("x.test", 443)


async def test_a_name_with_public_addresses_is_allowed() -> None:
    addresses = await create_policy("", "1.1.1.1", "2606:4700::1", "1.1.1.1").resolve("x.test", 443)
    assert [str(address) for address in addresses] == ["1.1.1.1", "2606:4700::1"]


async def test_names_that_cannot_be_resolved() -> None:
    async def fail(_: str) -> list[str]:
        raise OSError("no such name")

    async def never_answer(_: str) -> list[str]:
        await asyncio.Event().wait()
        return []

    for resolver in (fail, resolve_to(), resolve_to("nonsense")):
        if resolver is not None:
            with pytest.raises(EgressDnsError, match="does not exist"):
                await EgressPolicy(resolver=resolver).resolve("x.test", 443)
    slow = EgressPolicy(resolver=never_answer, connect_timeout=timedelta(milliseconds=10))
    with pytest.raises(EgressTimeoutError, match="name server"):
        await slow.resolve("x.test", 443)


@pytest.mark.parametrize(
    ("allowlist", "host", "port", "addresses"),
    [
        ("127.0.0.0/8", "127.0.0.1", 9999, ()),
        ("127.0.0.0/8", "x.test", 9999, ("127.0.0.9",)),
        ("::1/128", "::1", 80, ()),
        ("::1", "::1", 8080, ()),
        ("[::1]:8080", "::1", 8080, ()),
        ("127.0.0.1:8080", "127.0.0.1", 8080, ()),
        ("127.0.0.1:8080", "x.test", 8080, ("127.0.0.1",)),
        ("hooks.test", "hooks.test", 9999, ("10.0.0.1",)),
        ("HOOKS.test.:8080", "hooks.test", 8080, ("10.0.0.1",)),
        (" other.test ,, hooks.test:8443 ", "hooks.test", 8443, ("1.1.1.1",)),
        ("10.0.0.0/8", "x.test", 80, ("::ffff:10.0.0.1",)),
        ("169.254.169.254", "169.254.169.254", 80, ()),
        ("169.254.169.254:80", "x.test", 80, ("169.254.169.254",)),
    ],
)
async def test_the_allowlist_permits(
    allowlist: str, host: str, port: int, addresses: tuple[str, ...]
) -> None:
    assert await create_policy(allowlist, *addresses).resolve(host, port)


@pytest.mark.parametrize(
    ("allowlist", "host", "port", "addresses"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8081, ()),
        ("127.0.0.1:8080", "127.0.0.2", 8080, ()),
        ("hooks.test:8080", "hooks.test", 80, ("10.0.0.1",)),
        ("hooks.test", "other.test", 80, ("10.0.0.1",)),
        ("hooks.test", "x.hooks.test", 80, ("10.0.0.1",)),
        ("hooks.test", "10.0.0.1", 80, ()),
        ("10.0.0.0/8", "x.test", 80, ("10.0.0.1", "192.168.0.1")),
        ("10.0.0.0/8", "64:ff9b::a00:1", 80, ()),
        # Metadata addresses need an entry for exactly this address.
        ("169.254.0.0/16", "169.254.169.254", 80, ()),
        ("100.64.0.0/10", "100.100.100.200", 80, ()),
        ("hooks.test", "hooks.test", 80, ("169.254.169.254",)),
        ("168.0.0.0/8", "168.63.129.16", 80, ()),
        ("fd00::/8", "fd00:ec2::254", 80, ()),
    ],
)
async def test_the_allowlist_permits_nothing_else(
    allowlist: str, host: str, port: int, addresses: tuple[str, ...]
) -> None:
    with pytest.raises(EgressRefusedError):
        await create_policy(allowlist, *addresses).resolve(host, port)


@pytest.mark.parametrize(
    "entry", ["0.0.0.0/0", "::/0", "0.0.0.0/1", "128.0.0.0/1", "8000::/1", "*", "*.test", "10.0.0.1/8", "a b",
              "x.test:0", "x.test:99999", "http://x.test", "10.0.0.0/8:80", "[x.test]:80"]
)  # fmt: skip
def test_allowlist_entries_that_are_invalid_or_permit_everything_are_refused(entry: str) -> None:
    with pytest.raises(SettingsError) as caught:
        EgressAllowlist.parse(entry)
    assert caught.value.field == "egress_allow"


def test_the_settings_define_the_default_policy(tmp_path: Path) -> None:
    environ = {
        "HOLDFAST_EGRESS_ALLOW": "hooks.test",
        "HOLDFAST_EGRESS_PORTS": "443, 8443",
        "HOLDFAST_EGRESS_MAX_BYTES": "2048",
        "HOLDFAST_EGRESS_TIMEOUT": "5s",
    }
    policy = EgressPolicy.from_settings(load_settings(environ=environ, folder=tmp_path))
    assert policy.allowlist == EgressAllowlist.parse("hooks.test")
    assert policy.ports == {443, 8443}
    assert (policy.max_response_bytes, policy.total_timeout) == (2048, timedelta(seconds=5))
    for ports in ("", "x", "0", "70000"):
        with pytest.raises(SettingsError):
            EgressPolicy.from_settings(Settings(egress_ports=ports))


def test_no_setting_turns_the_guard_off() -> None:
    names = {field.name for field in fields(Settings) if field.name.startswith("egress")}
    assert names == {"egress_allow", "egress_max_bytes", "egress_ports", "egress_timeout"}


def test_schemes_can_be_limited() -> None:
    policy = EgressPolicy(schemes=frozenset({"https"}))
    assert policy.check_url("https://x.test/").secure
    with pytest.raises(EgressRefusedError, match="http:// are not allowed"):
        policy.check_url("http://x.test/")

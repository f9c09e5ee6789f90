"""The allow-list: exceptions to the rule that only public addresses on the usual ports are reached."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

from holdfast.egress.addresses import IpAddress, IpNetwork, is_metadata_address
from holdfast.egress.errors import EgressRefusedError
from holdfast.egress.urls import normalize_host, parse_address, parse_authority
from holdfast.errors import SettingsError

# A wider network would be the whole internet or most of it: no allow-list turns the guard off.
MIN_IPV4_PREFIX_BITS: Final = 8
MIN_IPV6_PREFIX_BITS: Final = 7


@dataclass(frozen=True)
class AllowlistEntry:
    """One host or one network, on one port or on all ports."""

    host: str | None = None
    network: IpNetwork | None = None
    port: int | None = None

    def matches(self, host: str, address: IpAddress, port: int) -> bool:
        """Return whether a connection to this address, for this host name, is what the entry permits."""
        if self.port is not None and self.port != port:
            return False
        if self.network is None:
            return self.host == host and not is_metadata_address(address)
        # Metadata addresses give out credentials, so only an entry for exactly that address permits them.
        is_specific = self.network.num_addresses == 1 or not is_metadata_address(address)
        return address in self.network and is_specific


@dataclass(frozen=True)
class EgressAllowlist:
    """Hosts and private networks that outgoing requests may reach, besides the public internet.

    An entry is a network (`10.0.0.0/8`), a host (`hooks.internal`) or either with a port
    (`hooks.internal:8080`, `127.0.0.1:9000`, `[::1]:9000`). An entry without a port permits all ports.

    >>> from holdfast.egress import EgressAllowlist
    >>> allowlist = EgressAllowlist.parse("10.0.0.0/8, hooks.internal:8080")
    >>> len(allowlist.entries)
    2
    """

    entries: tuple[AllowlistEntry, ...] = ()

    @classmethod
    def parse(cls, text: str) -> EgressAllowlist:
        """Parse entries, comma-separated. Raise SettingsError for an invalid entry."""
        return cls(tuple(_parse_entry(entry) for part in text.split(",") if (entry := part.strip())))

    def permits(self, host: str, address: IpAddress, port: int) -> bool:
        """Return whether an entry permits a connection to this address, for this host name and port."""
        return any(entry.matches(host, address, port) for entry in self.entries)


def _parse_entry(text: str) -> AllowlistEntry:
    try:
        return AllowlistEntry(network=_check_network_size(ipaddress.ip_network(text), text))
    except ValueError:
        pass
    try:
        has_port = ":" in text
        host, port = parse_authority(text) if has_port else (normalize_host(text), None)
    except EgressRefusedError:
        raise SettingsError(
            f"The allow-list entry {text!r} is not valid.",
            fix="Write a network, a host or host:port, such as 10.0.0.0/8, hooks.internal or 127.0.0.1:9000.",
            field="egress_allow",
        ) from None
    address = parse_address(host)
    if address is None:
        return AllowlistEntry(host=host, port=port)
    return AllowlistEntry(network=ipaddress.ip_network(address), port=port)


def _check_network_size(network: IpNetwork, text: str) -> IpNetwork:
    minimum = MIN_IPV4_PREFIX_BITS if network.version == 4 else MIN_IPV6_PREFIX_BITS
    if network.prefixlen < minimum:
        raise SettingsError(
            f"The allow-list entry {text!r} is too wide.",
            fix=f"Write networks of at least /{minimum}. No entry can permit all addresses.",
            field="egress_allow",
        )
    return network

"""Which IP addresses are public: an own table, because the one of Python differs between its versions.

The table follows the IANA registries of special-purpose addresses. It also lists addresses on which clouds
serve the credentials of a machine and that look public (Azure's 168.63.129.16). For IPv6 only 2000::/3 is
public, without the ranges that tunnel to IPv4. An IPv4 address inside an IPv6 address is checked like itself
where the network translates it (mapped, NAT64), and refused where the mechanism is obsolete (compatible,
6to4, Teredo, ISATAP) or belongs to a private translator (64:ff9b:1::/48).
"""

from __future__ import annotations

import ipaddress
from typing import Final, TypeAlias

IpAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_SPECIAL_IPV4_NETWORKS: Final = {
    ipaddress.IPv4Network(network): name
    for network, name in {
        "0.0.0.0/8": "unspecified",
        "10.0.0.0/8": "private",
        "100.64.0.0/10": "shared",
        "127.0.0.0/8": "loopback",
        "168.63.129.16/32": "metadata",
        "169.254.0.0/16": "link-local",
        "172.16.0.0/12": "private",
        "192.0.0.0/24": "reserved",
        "192.0.2.0/24": "documentation",
        "192.88.99.0/24": "6to4 relay",
        "192.168.0.0/16": "private",
        "198.18.0.0/15": "benchmark",
        "198.51.100.0/24": "documentation",
        "203.0.113.0/24": "documentation",
        "224.0.0.0/4": "multicast",
        "240.0.0.0/4": "reserved",
    }.items()
}
_SPECIAL_IPV6_NETWORKS: Final = {
    ipaddress.IPv6Network(network): name
    for network, name in {
        "::/128": "unspecified",
        "::1/128": "loopback",
        "::/96": "IPv4-compatible",
        "64:ff9b:1::/48": "local NAT64",
        "2001::/32": "Teredo",
        "2001:2::/48": "benchmark",
        "2001::/23": "reserved",
        "2001:db8::/32": "documentation",
        "2002::/16": "6to4",
        "3fff::/20": "documentation",
        "fc00::/7": "private",
        "fe80::/10": "link-local",
        "fec0::/10": "site-local",
        "ff00::/8": "multicast",
    }.items()
}
# Addresses on which clouds serve credentials to the machine: AWS, Azure, Google, Oracle, Alibaba and others.
METADATA_ADDRESSES: Final = frozenset(
    ipaddress.ip_address(address)
    for address in (
        "168.63.129.16", "169.254.169.254", "169.254.170.2", "169.254.170.23", "169.254.42.42",
        "192.0.0.192", "100.100.100.200", "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fe80::a9fe:a9fe",
        "fd00:42::42",
    )
)  # fmt: skip
_PUBLIC_IPV6_NETWORK: Final = ipaddress.IPv6Network("2000::/3")
_NAT64_NETWORK: Final = ipaddress.IPv6Network("64:ff9b::/96")
_ISATAP_INTERFACE_PREFIXES: Final = (0x00005EFE, 0x02005EFE)


def is_public_address(address: IpAddress) -> bool:
    """Return whether an address is on the public internet and not one of the special ranges.

    >>> from ipaddress import ip_address
    >>> from holdfast.egress import is_public_address
    >>> is_public_address(ip_address("8.8.8.8")), is_public_address(ip_address("::ffff:10.0.0.1"))
    (True, False)
    """
    return find_special_range(address) is None


def find_special_range(address: IpAddress) -> str | None:
    """Return the name of the special range of an address, such as "private", or None for a public address."""
    if isinstance(address, ipaddress.IPv4Address):
        return next((name for network, name in _SPECIAL_IPV4_NETWORKS.items() if address in network), None)
    if address.scope_id is not None:
        return "link-local"
    embedded = _get_translated_ipv4(address)
    if embedded is not None:
        return find_special_range(embedded)
    for network, name in _SPECIAL_IPV6_NETWORKS.items():
        if address in network:
            return name
    if (int(address) >> 32) & 0xFFFFFFFF in _ISATAP_INTERFACE_PREFIXES:
        return "ISATAP"
    return None if address in _PUBLIC_IPV6_NETWORK else "reserved"


def is_metadata_address(address: IpAddress) -> bool:
    """Return whether a cloud serves the credentials of the machine on this address."""
    if isinstance(address, ipaddress.IPv6Address):
        return (_get_translated_ipv4(address) or address) in METADATA_ADDRESSES
    return address in METADATA_ADDRESSES


def unmap_address(address: IpAddress) -> IpAddress:
    """Return the IPv4 address of an IPv4-mapped IPv6 address, because a socket connects to that one."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _get_translated_ipv4(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that packets to this IPv6 address reach, if a translator rewrites them."""
    if address in _NAT64_NETWORK:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped

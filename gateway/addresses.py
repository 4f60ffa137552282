"""Which addresses the gateway may connect to for a client's sake: only public ones, or those the operator named."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")  # all that is allocated; ipaddress calls site-local fec0:: global
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# Look public, to some versions of ipaddress at least, and hand out a cloud's credentials: Azure's host, Oracle's range.
_METADATA = (ipaddress.ip_network("168.63.129.16/32"), ipaddress.ip_network("192.0.0.0/24"))


def is_allowed(text: str, networks: Sequence[Network]) -> bool:
    """Whether a resolved address may be connected to."""
    address = _real(ipaddress.ip_address(text.partition("%")[0]))
    if any(address in network for network in networks):
        return True
    if any(address in network for network in _METADATA):
        return False
    if isinstance(address, ipaddress.IPv6Address) and address not in _GLOBAL_UNICAST:
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _real(address: Address) -> Address:
    """The IPv4 address behind the IPv6 forms that carry one."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo[1] if address.teredo else None
    return address.ipv4_mapped or address.sixtofour or teredo or address

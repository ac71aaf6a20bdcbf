"""Which network addresses a webhook may connect to: public ones, and those that the settings list.

An address in a special range (private, loopback, the metadata service of a cloud, and so on) is refused,
unless a listed network is inside the narrowest special range that contains the address. So the entry
"10.0.0.0/8" permits private addresses, and "0.0.0.0/0" permits no special address at all.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from toc.errors import InvalidInput

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

ALLOW_ENTRIES_MAX = 1000

_SPECIAL_RANGES: tuple[tuple[str, str], ...] = (
    ("0.0.0.0/8", "unspecified"),
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "carrier-grade NAT"),
    ("100.100.100.200/32", "metadata service"),
    ("127.0.0.0/8", "loopback"),
    ("168.63.129.16/32", "metadata service"),
    ("169.254.0.0/16", "link-local"),
    ("169.254.169.254/32", "metadata service"),
    ("169.254.170.2/32", "metadata service"),
    ("169.254.170.23/32", "metadata service"),
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "reserved"),
    ("192.0.0.192/32", "metadata service"),
    ("192.0.2.0/24", "documentation"),
    ("192.88.99.0/24", "6to4"),
    ("192.168.0.0/16", "private"),
    ("198.18.0.0/15", "benchmark"),
    ("198.51.100.0/24", "documentation"),
    ("203.0.113.0/24", "documentation"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
    ("255.255.255.255/32", "broadcast"),
    ("::/96", "IPv4-compatible IPv6"),
    ("::/128", "unspecified"),
    ("::1/128", "loopback"),
    ("::ffff:0:0/96", "IPv4-mapped IPv6"),
    ("::ffff:0:0:0/96", "IPv4-translated IPv6"),
    ("64:ff9b::/96", "NAT64"),
    ("64:ff9b:1::/48", "NAT64"),
    ("100::/64", "discard"),
    ("2001::/32", "Teredo"),
    ("2001:10::/28", "ORCHID"),
    ("2001:20::/28", "ORCHID"),
    ("2001:db8::/32", "documentation"),
    ("2002::/16", "6to4"),
    ("3fff::/20", "documentation"),
    ("5f00::/16", "segment routing"),
    ("fc00::/7", "private"),
    ("fd00:ec2::254/128", "metadata service"),
    ("fd20:ce::254/128", "metadata service"),
    ("fe80::/10", "link-local"),
    ("fec0::/10", "site-local"),
    ("ff00::/8", "multicast"),
)
# The narrowest ranges first, so that the first match is the narrowest.
_RANGES: tuple[tuple[Network, str], ...] = tuple(
    sorted(
        ((ipaddress.ip_network(text), kind) for text, kind in _SPECIAL_RANGES),
        key=lambda found: -found[0].prefixlen,
    )
)
_GLOBAL_UNICAST_IPV6 = IPv6Network("2000::/3")
_HOST_ENTRY = re.compile(
    r"(\*\.)?([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*"
)
_LOOKS_LIKE_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


def special_range_of(address: Address) -> tuple[Network | None, str] | None:
    """The narrowest special range that contains the address, and its kind; None: a public address.

    The range is None for an address that is not public for a reason that the table above does not have.
    """
    for network, kind in _RANGES:
        if address.version == network.version and address in network:
            return network, kind
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST_IPV6:
        return None, "reserved"
    return None if address.is_global and not address.is_multicast else (None, "reserved")


def is_host_in(host: str, entries: Iterable[str]) -> bool:
    """Whether a host name is one of `entries`, or below an entry such as "*.internal"."""
    return any(
        host.endswith(entry[1:]) and len(host) > len(entry) - 1
        if entry.startswith("*.")
        else host == entry
        for entry in entries
    )


def ends_in_number(host: str) -> bool:
    """Whether programs may take the host for an IPv4 address, because its last part is a number."""
    return _LOOKS_LIKE_NUMBER.fullmatch(host.removesuffix(".").rpartition(".")[2]) is not None


def check_host_entry(field: str, entry: str) -> str:
    """A host name of the settings, in lower case: "hooks.example.com", "*.internal". Raises InvalidInput."""
    name = entry.lower()
    if len(name) > 253 or not _HOST_ENTRY.fullmatch(name) or ends_in_number(name):
        rule = "must be a host name, or '*.' and a host name, without port and scheme"
        raise InvalidInput(field, entry, rule)
    return name


@dataclass(frozen=True, slots=True)
class AllowList:
    """Networks and host names to which webhooks may connect. Empty: public addresses only.

    An address is permitted if a listed network contains it (see the module), or if it is public and the list
    is empty or has the host's name. A host name alone never permits an address that is not public: otherwise
    whoever answers for the name in DNS could choose the address.
    """

    networks: tuple[Network, ...] = ()
    hosts: tuple[str, ...] = ()

    @classmethod
    def parse(cls, field: str, entries: Iterable[str]) -> AllowList:
        """Raises InvalidInput for an entry that is neither a network nor a host name."""
        networks: list[Network] = []
        hosts: list[str] = []
        for entry in entries:
            try:
                networks.append(ipaddress.ip_network(entry))
            except ValueError as error:
                if "host bits" in str(error):
                    raise InvalidInput(field, entry, "has bits set behind its prefix") from None
                hosts.append(check_host_entry(field, entry))
        if len(networks) + len(hosts) > ALLOW_ENTRIES_MAX:
            rule = f"has more than {ALLOW_ENTRIES_MAX} entries"
            raise InvalidInput(field, len(networks) + len(hosts), rule)
        return cls(tuple(networks), tuple(hosts))

    def reason_to_refuse(self, host: str, address: Address) -> str | None:
        """Why a connection to `address`, an address of `host`, is refused; None: it is permitted."""
        special = special_range_of(address)
        for network in self.networks:
            if address.version == network.version and address in network:
                if special is None:
                    return None
                if special[0] is not None and network.subnet_of(special[0]):  # type: ignore[arg-type]
                    return None
        if special is not None:
            return f"{address} is not a public address ({special[1]}), and webhooks.allow does not list it"
        if (self.networks or self.hosts) and not is_host_in(host, self.hosts):
            return f"webhooks.allow lists neither {host} nor {address}"
        return None

"""Attacks: none gets through, and each is refused for the expected reason."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import httpcore
import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from tests.webhooks.attacks import ADDRESS_ATTACKS, LISTED_TOO_WIDELY, URL_ATTACKS
from toc.domain.network_addresses import AllowList
from toc.domain.webhook_urls import UrlRules, check_webhook_url
from toc.errors import InvalidInput
from toc.webhooks.guarded_network import ConnectionRefusedByRuleError, GuardedNetwork
from toc.webhooks.signing import new_secret, secret_bytes_of, signature_headers

HOST = "hooks.example.com"
PUBLIC = "93.184.215.14"


class ForbiddenNetwork(httpcore.AsyncNetworkBackend):
    """Fails the test at any connection."""

    async def connect_tcp(self, host: str, *_: Any, **__: Any) -> httpcore.AsyncNetworkStream:
        pytest.fail(f"a connection to {host} got through")


class RecordingNetwork(httpcore.AsyncNetworkBackend):
    """Accepts connections to nothing, and remembers the addresses."""

    def __init__(self) -> None:
        self.addresses: list[str] = []

    async def connect_tcp(self, host: str, *_: Any, **__: Any) -> httpcore.AsyncNetworkStream:
        self.addresses.append(host)
        return httpcore.AsyncMockStream([])


def connect(
    addresses: Sequence[str], allow: Sequence[str] = (), network: Any = None, host: str = HOST
) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return addresses

    guarded = GuardedNetwork(
        AllowList.parse("allow", allow), resolve, network or ForbiddenNetwork()
    )
    asyncio.run(guarded.connect_tcp(host, 443, 10.0))


@pytest.mark.parametrize("url", list(URL_ATTACKS))
def test_a_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_webhook_url(url, UrlRules())
    assert URL_ATTACKS[url] in str(refused.value)
    assert ":pass@" not in str(refused.value)


@pytest.mark.parametrize("address", list(ADDRESS_ATTACKS))
def test_an_address_in_a_url_is_refused(address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(InvalidInput) as refused:
        check_webhook_url(f"https://{host}/", UrlRules())
    assert f"({ADDRESS_ATTACKS[address]}" in str(refused.value)


@pytest.mark.parametrize("address", list(ADDRESS_ATTACKS))
def test_a_name_with_such_an_address_is_refused(address: str) -> None:
    """Also behind a public one: no address of the name is used then."""
    for addresses in ([address], [PUBLIC, address]):
        with pytest.raises(ConnectionRefusedByRuleError, match=ADDRESS_ATTACKS[address]):
            connect(addresses)


@pytest.mark.parametrize(("entry", "address"), list(LISTED_TOO_WIDELY))
def test_an_entry_permits_no_more_than_it_says(entry: str, address: str) -> None:
    with pytest.raises(ConnectionRefusedByRuleError, match=LISTED_TOO_WIDELY[entry, address]):
        connect([address], [entry])


@pytest.mark.parametrize(
    ("addresses", "text"),
    [
        ([], "has 0 addresses"),
        ([PUBLIC] * 17, "has 17 addresses"),
        (["localhost"], "has the address 'localhost'"),
        (["127.1"], "has the address '127.1'"),
        (["fe80::1%eth0"], "has a zone"),
        (["2a00:1450::1%lo"], "has a zone"),
        (["/var/run/docker.sock"], "has the address"),
    ],
)
def test_an_odd_answer_of_dns_is_refused(addresses: list[str], text: str) -> None:
    with pytest.raises(ConnectionRefusedByRuleError, match=text):
        connect(addresses)


def test_the_checked_address_is_the_one_that_is_connected_to() -> None:
    """DNS rebinding: the second answer for the name would be loopback, and is never asked for."""
    answers, network = [[PUBLIC], ["127.0.0.1"]], RecordingNetwork()

    async def resolve(host: str, port: int) -> Sequence[str]:
        return answers.pop(0)

    async def connect_twice() -> None:
        guarded = GuardedNetwork(AllowList(), resolve, network)
        await guarded.connect_tcp(HOST, 443, 10.0)
        assert network.addresses == [PUBLIC]
        with pytest.raises(ConnectionRefusedByRuleError, match="loopback"):
            await guarded.connect_tcp(HOST, 443, 10.0)

    asyncio.run(connect_twice())
    assert network.addresses == [PUBLIC]


def test_no_unix_socket() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return [PUBLIC]

    guarded = GuardedNetwork(AllowList(), resolve, ForbiddenNetwork())
    with pytest.raises(ConnectionRefusedByRuleError):
        asyncio.run(guarded.connect_unix_socket("/var/run/docker.sock"))


@pytest.mark.parametrize(
    ("address", "entry"),
    [
        ("10.1.2.3", "10.0.0.0/8"),
        ("10.1.2.3", "10.1.2.3/32"),
        ("10.1.2.3", "10.1.2.3"),
        ("127.0.0.1", "127.0.0.0/8"),
        ("169.254.169.254", "169.254.169.254/32"),
        ("::1", "::1/128"),
        ("fd12::1", "fc00::/7"),
        (PUBLIC, HOST),
        (PUBLIC, "*.example.com"),
        (PUBLIC, "0.0.0.0/0"),
        (PUBLIC, "93.184.0.0/16"),
    ],
)
def test_an_entry_permits_what_it_says(address: str, entry: str) -> None:
    network = RecordingNetwork()
    connect([address], [entry], network)
    assert network.addresses == [address]


# ---- signatures, against the verifier of another author

BODY = b'{"type":"order.close","data":{"job_id":"1"}}'
Change = Callable[[dict[str, str]], None]


def signed(secret: str, message_id: str = "42", now_s: int | None = None) -> dict[str, str]:
    now_s = int(datetime.now(UTC).timestamp()) if now_s is None else now_s
    headers = signature_headers(message_id, now_s, BODY, [secret_bytes_of(secret)])
    return {name.decode(): value.decode() for name, value in headers}


def set_header(name: str, value: str) -> Change:
    return lambda headers: headers.update({name: value})


def drop_header(name: str) -> Change:
    return lambda headers: headers.pop(name) and None


def flip_signature(headers: dict[str, str]) -> None:
    raw = bytearray(base64.b64decode(headers["webhook-signature"].removeprefix("v1,")))
    raw[0] ^= 1
    headers["webhook-signature"] = "v1," + base64.b64encode(raw).decode()


def shift_time(seconds: int) -> Change:
    def shift(headers: dict[str, str]) -> None:
        headers["webhook-timestamp"] = str(int(headers["webhook-timestamp"]) + seconds)

    return shift


def other_version(headers: dict[str, str]) -> None:
    headers["webhook-signature"] = headers["webhook-signature"].replace("v1,", "v2,")


def cut_signature(headers: dict[str, str]) -> None:
    headers["webhook-signature"] = headers["webhook-signature"][:-4]


HEADER_ATTACKS: dict[str, Change] = {
    "another id": set_header("webhook-id", "43"),
    "an empty id": set_header("webhook-id", ""),
    "a longer id": set_header("webhook-id", "42.1"),
    "no id": drop_header("webhook-id"),
    "no time": drop_header("webhook-timestamp"),
    "no signature": drop_header("webhook-signature"),
    "an empty signature": set_header("webhook-signature", ""),
    "only a version": set_header("webhook-signature", "v1,"),
    "one second later": shift_time(1),
    "one second earlier": shift_time(-1),
    "an hour later": shift_time(3600),
    "an hour earlier": shift_time(-3600),
    "a time that is no number": set_header("webhook-timestamp", "now"),
    "a flipped bit": flip_signature,
    "another version": other_version,
    "a cut signature": cut_signature,
    "zeros": set_header("webhook-signature", "v1," + base64.b64encode(bytes(32)).decode()),
}
BODY_ATTACKS: dict[str, bytes] = {
    "another job": BODY.replace(b'"1"', b'"2"'),
    "a space more": BODY + b" ",
    "a byte less": BODY[:-1],
    "empty": b"",
    "a field more": BODY.replace(b"{", b'{"x":1,', 1),
    "upper case": BODY.upper(),
}


@pytest.mark.parametrize("attack", list(HEADER_ATTACKS))
def test_a_request_with_changed_headers_is_refused_by_receivers(attack: str) -> None:
    secret = new_secret()
    headers = signed(secret)
    Webhook(secret).verify(BODY, headers)
    HEADER_ATTACKS[attack](headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(BODY, headers)


@pytest.mark.parametrize("attack", list(BODY_ATTACKS))
def test_a_request_with_a_changed_body_is_refused_by_receivers(attack: str) -> None:
    secret = new_secret()
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(BODY_ATTACKS[attack], signed(secret))


def test_a_request_of_another_sender_or_time_is_refused_by_receivers() -> None:
    secret, now_s = new_secret(), int(datetime.now(UTC).timestamp())
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(BODY, signed(new_secret()))
    for replayed_s in (now_s - 3600, now_s + 3600):
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(BODY, signed(secret, now_s=replayed_s))


@pytest.mark.parametrize("message_id", ["4.2", "42\r\nx: 1", "42\n", "ä", "4\x002"])
def test_an_id_that_could_be_read_in_two_ways_is_not_signed(message_id: str) -> None:
    with pytest.raises(InvalidInput, match="without dots"):
        signature_headers(message_id, 1, BODY, [bytes(32)])


@pytest.mark.parametrize(
    "secret",
    [
        "", "whsec_", "no prefix", "whsec_c2hvcnQ=", "whsec_" + "A" * 100, "whsec_ü" * 8,
        base64.b64encode(bytes(32)).decode(), "whsec_" + base64.b64encode(bytes(23)).decode(),
        "whsec_" + base64.b64encode(bytes(65)).decode(), "whsec_" + "!" * 44,
    ],
)  # fmt: skip
def test_a_weak_secret_is_refused_and_not_shown(secret: str) -> None:
    with pytest.raises(InvalidInput, match="24 to 64 bytes") as refused:
        secret_bytes_of(secret)
    assert str(refused.value).endswith("got '…'")


def test_there_are_at_least_200_attacks() -> None:
    counts = (
        len(URL_ATTACKS), 2 * len(ADDRESS_ATTACKS), len(LISTED_TOO_WIDELY), len(HEADER_ATTACKS),
        len(BODY_ATTACKS),
    )  # fmt: skip
    assert sum(counts) >= 200, counts

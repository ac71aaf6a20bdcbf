"""Encrypted payloads: each round trip, each changed byte, each other row, each other key."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import SecretStr

from toc.domain.argument_checks import NESTING_MAX, encode_attribute
from toc.domain.payload_envelope import (
    CODEC_KEY,
    PLAIN_BYTES_MAX,
    Envelope,
    PayloadIdentity,
    associated_bytes,
)
from toc.errors import InvalidInput, SettingsError
from toc.runtime.key_ring import KEYS_MAX, KeyRing, new_key_line
from toc.runtime.payload_codecs import PayloadCodecs, PayloadUnreadableError
from toc.runtime.setting_groups import CodecSettings
from toc.runtime.settings import load_settings

OLD, NEW = new_key_line(), new_key_line()
SECRET = "4111 1111 1111 1111"
ROW = PayloadIdentity(7, "order.close", "A-42", "shop")


def codecs_of(*lines: str, name: str = "pii", accept_plain: bool = False) -> PayloadCodecs:
    key = SecretStr(",".join(lines))
    return PayloadCodecs({name: CodecSettings(key=key, accept_plain=accept_plain)})


CODECS = codecs_of(OLD)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
payloads = st.none() | st.dictionaries(st.text().filter(lambda it: it != CODEC_KEY), values)
rows = st.builds(
    PayloadIdentity,
    st.integers(0, 2**63 - 1),
    st.sampled_from(["order.close", "report", "r"]),
    st.integers(0, 2**64 - 1) | st.text(min_size=1, max_size=64),
    st.none() | st.sampled_from(["shop", "s", "42"]),
)


def encoded(payload: dict[str, Any] | None) -> str | None:
    try:
        return encode_attribute(payload, PLAIN_BYTES_MAX)
    except InvalidInput:  # a lone surrogate, or nested too deep
        assume(False)
        raise


@given(payloads, rows)
def test_a_payload_is_read_as_it_was_written_and_no_part_of_it_is_shown(
    payload: dict[str, Any] | None, row: PayloadIdentity
) -> None:
    text = CODECS.make_seal("pii", encoded(payload))(row)
    assert CODECS.open_payload(text, "pii", row) == (payload or {})
    # Also by the envelope alone: the type may have lost its codec meanwhile.
    assert CODECS.open_payload(text, None, row) == (payload or {})
    assert json.loads(text).keys() == {CODEC_KEY, "key", "data"}
    assert text != CODECS.make_seal("pii", encoded(payload))(row)  # a nonce of its own


@given(st.data())
def test_each_changed_byte_is_noticed(data: st.DataObject) -> None:
    text = CODECS.make_seal("pii", json.dumps({"card": SECRET}))(ROW)
    position = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters(min_codepoint=0x20, max_codepoint=0x7E))
    assume(other != text[position])
    change = data.draw(st.sampled_from(["replace", "insert", "delete"]))
    tail = text[position + (change != "insert") :]
    changed = text[:position] + ("" if change == "delete" else other) + tail
    assume(changed != text)
    with pytest.raises(PayloadUnreadableError):
        CODECS.open_payload(changed, "pii", ROW)


@given(rows, rows)
def test_a_payload_in_another_row_is_refused(one: PayloadIdentity, two: PayloadIdentity) -> None:
    assume(one != two)
    text = CODECS.make_seal("pii", "{}")(one)
    with pytest.raises(PayloadUnreadableError, match="another row") as caught:
        CODECS.open_payload(text, "pii", two)
    assert not caught.value.waits


@pytest.mark.parametrize(
    "two",
    [
        ROW._replace(job_id=8),
        ROW._replace(biz_type="order.closed"),
        ROW._replace(biz_id="A-43"),
        ROW._replace(tenant=None),
        ROW._replace(tenant="shop2"),
    ],
)
def test_each_part_of_the_row_is_bound(two: PayloadIdentity) -> None:
    with pytest.raises(PayloadUnreadableError, match="another row"):
        CODECS.open_payload(CODECS.make_seal("pii", "{}")(ROW), "pii", two)


def test_an_integer_and_the_text_of_its_digits_are_different_businesses() -> None:
    row = ROW._replace(biz_id=42)
    with pytest.raises(PayloadUnreadableError, match="another row"):
        CODECS.open_payload(CODECS.make_seal("pii", "{}")(row), "pii", row._replace(biz_id="42"))


def test_keys_rotate_without_a_moment_in_which_a_payload_is_unreadable() -> None:
    old, both, switched, new = (
        codecs_of(OLD), codecs_of(OLD, NEW), codecs_of(NEW, OLD), codecs_of(NEW),
    )  # fmt: skip
    text = '{"a":1}'
    by_old, by_new = old.make_seal("pii", text)(ROW), switched.make_seal("pii", text)(ROW)
    assert both.make_seal("pii", text)(ROW).startswith(by_old[:40])  # the first key encrypts
    for codecs in (both, switched):
        for each in (by_old, by_new):
            assert codecs.open_payload(each, "pii", ROW) == {"a": 1}
    with pytest.raises(PayloadUnreadableError, match=OLD.partition(":")[0]) as caught:
        new.open_payload(by_old, "pii", ROW)
    assert caught.value.waits


def test_other_bytes_under_the_same_key_id_are_no_missing_key() -> None:
    wrong = codecs_of(OLD.partition(":")[0] + ":" + NEW.partition(":")[2])
    with pytest.raises(PayloadUnreadableError, match="other bytes") as caught:
        wrong.open_payload(CODECS.make_seal("pii", "{}")(ROW), "pii", ROW)
    assert not caught.value.waits


def test_the_name_of_the_codec_and_of_the_key_cannot_be_replaced() -> None:
    two = PayloadCodecs({
        name: CodecSettings(key=SecretStr(f"a:{OLD.partition(':')[2]},b:{OLD.partition(':')[2]}"))
        for name in ("pii", "ids")
    })  # fmt: skip
    text = two.make_seal("pii", "{}")(ROW)
    for old, new in (('"pii"', '"ids"'), ('"key":"a"', '"key":"b"')):
        assert old in text
        with pytest.raises(PayloadUnreadableError, match="changed"):
            two.open_payload(text.replace(old, new), "pii", ROW)


@pytest.mark.parametrize(
    ("text", "codec", "accepts", "expected"),
    [
        (None, None, False, {}),
        ('{"a":1}', None, False, {"a": 1}),
        ('{"a":1}', "pii", False, "waits"),
        (None, "pii", False, "waits"),
        ('{"a":1}', "pii", True, {"a": 1}),
        (None, "pii", True, {}),
        ('{"a":1}', "gone", False, "waits"),
        ("[1]", "pii", False, "waits"),
        ("5", None, False, 5),
        ("nonsense", "pii", True, "fails"),
        ('{"$toc.codec":1}', None, True, "fails"),
        ('{"$toc.codec":"pii","key":"x","data":""}', None, True, "waits"),  # an unknown key
        ('{"$toc.codec":"gone","key":"x","data":""}', None, True, "waits"),
    ],
)
def test_the_table_of_the_page(
    text: str | None, codec: str | None, accepts: bool, expected: Any
) -> None:
    codecs = codecs_of(OLD, accept_plain=accepts)
    if not isinstance(expected, str):
        assert codecs.open_payload(text, codec, ROW) == expected
        return
    with pytest.raises(PayloadUnreadableError) as caught:
        codecs.open_payload(text, codec, ROW)
    assert caught.value.waits is (expected == "waits")


def test_a_reader_without_the_key_gets_a_marker_that_nobody_can_schedule_again() -> None:
    text = CODECS.make_seal("pii", json.dumps({"card": SECRET}))(ROW)
    for reader, why in ((codecs_of(NEW), "no key"), (PayloadCodecs(), "does not have the codec")):
        shown = reader.show_payload(text, json.loads(text), ROW)
        assert shown[CODEC_KEY] == "pii"
        assert why in shown["unreadable"]
        assert json.loads(text)["data"] not in str(shown)
        with pytest.raises(InvalidInput, match="toc's"):
            encode_attribute(shown, 4096)
    assert CODECS.show_payload(text, json.loads(text), ROW) == {"card": SECRET}


@pytest.mark.parametrize(
    "lines",
    [[], ["x"], [OLD, OLD], ["a:" + "A" * 42 + "=="], [f"k{n}:{'A' * 43}=" for n in range(17)]],
)
def test_bad_keys_are_refused_and_not_shown(lines: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        KeyRing(lines, "codecs.pii", "how")
    assert not any(line in str(caught.value) for line in lines if len(line) > 1)
    assert KEYS_MAX == 16


def test_nothing_shows_a_key() -> None:
    settings = CodecSettings(key=SecretStr(OLD))
    ring = KeyRing([OLD], "here", "how")
    for shown in (repr(settings), str(settings.model_dump()), repr(ring), repr(vars(CODECS))):
        assert OLD.partition(":")[2] not in shown


def test_the_largest_payload_fits_the_column() -> None:
    row = PayloadIdentity(2**63 - 1, "t" * 64, "b" * 64, "t" * 32)
    name = "n" * 32
    key = SecretStr("k" * 16 + ":" + NEW.partition(":")[2])
    text = PayloadCodecs({name: CodecSettings(key=key)}).make_seal(name, "x" * PLAIN_BYTES_MAX)(row)
    assert len(text) <= 65_535
    assert NESTING_MAX > 1


def test_the_form_is_one_text_only() -> None:
    found = Envelope("pii", "k", b"\x00\xff")
    text = found.to_text()
    assert Envelope.from_text(text, json.loads(text)) == found
    spaced = json.dumps(json.loads(text))
    assert Envelope.from_text(spaced, json.loads(spaced)) is None
    assert base64.b64encode(b"\x00\xff").decode() in text
    assert associated_bytes("a", "b", ROW) != associated_bytes("ab", "", ROW)


@pytest.mark.parametrize(
    ("codecs", "rule"),
    [
        ({"pii": {"key": 4111}}, "codecs.pii.key"),
        ({"pii": {}}, "key or key_file"),
        ({"pii": {"key": "4111", "key_file": "x"}}, "key or key_file"),
        ({"p i": {"key": "4111"}}, "name"),
        ({"pii": {"key": "x", "keys": "4111"}}, "unknown setting"),
        ({"pii": "4111"}, "codecs.pii"),
    ],
)
def test_bad_settings_are_refused_and_no_key_is_shown(codecs: Any, rule: str) -> None:
    with pytest.raises(SettingsError, match=rule) as caught:
        load_settings(codecs=codecs)
    assert "4111" not in str(caught.value)


def test_the_settings_never_show_a_key() -> None:
    secret = NEW.partition(":")[2]
    settings = load_settings(codecs={"pii": {"key": NEW}})
    assert secret not in repr(settings)
    assert secret not in settings.model_dump_json()
    assert secret in settings.json_with_passwords()  # for child processes

"""The text of a sink: what is refused, and which route a job gets."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toc.domain.job import Job, Status
from toc.domain.sink_targets import RouteValueError, SinkTarget, parse_sink
from toc.errors import InvalidInput


def job(tag: Any = None, tenant: str | None = None, biz_id: int | str = 42) -> Job:
    attribute = {} if tag is None else {"tag": tag}
    return Job(1, biz_id, "order.close", Status.RUNNING, 0, attribute, 0, 1, "t", tenant=tenant)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("webhook:shop", SinkTarget("webhook", "shop")),
        ("rabbitmq:orders", SinkTarget("rabbitmq", "orders")),
        ("rabbitmq:orders/{biz_type}.{tag}", SinkTarget("rabbitmq", "orders", "{biz_type}.{tag}")),
        ("redis-stream:a/b:{tenant}", SinkTarget("redis-stream", "a", "b:{tenant}")),
    ],
)
def test_what_is_read(text: str, target: SinkTarget) -> None:
    assert parse_sink(text) == target


@pytest.mark.parametrize(
    "text",
    [
        "", "rabbitmq", "rabbitmq:", ":orders", "Rabbitmq:orders", "rabbitmq:orders/", "http://shop",
        "webhook:shop/x", "rabbitmq:orders/{job_id}", "rabbitmq:orders/{biz_type", "rabbitmq:orders/a b",
        "rabbitmq:orders/a\n", "rabbitmq:orders\n", "rabbitmq:or/ders/x", "rabbitmq:orders/" + "a" * 201,
        "a" * 33 + ":orders", "rabbitmq:" + "a" * 65, "rabbitmq:orders/\u0661", 5, None,
    ],
)  # fmt: skip
def test_what_is_refused(text: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_sink(text)
    assert caught.value.field == "sink"


PARTS = ("{biz_type}", "{biz_id}", "{tenant}", "{tag}", "a", "B9", ".", "-", "_", ":")
VALUES = (
    st.none()
    | st.text(max_size=70)
    | st.text("ab.", max_size=4)
    | st.from_regex(r"[A-Za-z0-9_-]{0,66}", fullmatch=True)
)


@given(
    parts=st.lists(st.sampled_from(PARTS), min_size=1, max_size=15),
    tag=VALUES | st.integers() | st.lists(st.integers()),
    tenant=VALUES,
    biz_id=st.integers(0, 2**63 - 1) | st.text(min_size=1, max_size=70),
)
def test_the_route_of_a_job(parts: list[str], tag: Any, tenant: str | None, biz_id: Any) -> None:
    """The model: each part by itself; a value that is none or unusual refuses the whole."""
    values = {
        "{biz_type}": "order.close",
        "{biz_id}": str(biz_id),
        "{tenant}": tenant,
        "{tag}": tag,
    }
    wanted: str | None = ""
    for part in parts:
        value = values.get(part, part)
        value = "" if value is None else value
        is_free = part == "{biz_type}" or part not in values
        usable = isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_-]{0,64}", value)
        wanted = wanted + value if wanted is not None and (is_free or usable) else None
    target = parse_sink(f"rabbitmq:orders/{''.join(parts)}")
    if wanted is None:
        with pytest.raises(RouteValueError):
            target.route_of(job(tag, tenant, biz_id))
    else:
        assert target.route_of(job(tag, tenant, biz_id)) == wanted

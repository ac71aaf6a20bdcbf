"""Encrypted payloads on each engine: every way to schedule writes them, every way to read finds them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from pydantic import SecretStr

from tests.contract.library import Library
from tests.contract.recurring_store import RecurringStore
from toc.center.async_center import AsyncTimeoutCenter
from toc.center.center import JobSpec, TimeoutCenter
from toc.domain.declared_type import DeclaredType
from toc.domain.job import Status
from toc.domain.payload_envelope import CODEC_KEY, PLAIN_BYTES_MAX
from toc.domain.times import datetime_of
from toc.errors import InvalidInput, SettingsError
from toc.handlers.registry import Registry
from toc.runtime.key_ring import new_key_line
from toc.runtime.setting_groups import CodecSettings
from toc.runtime.settings import Settings
from toc.store.claims import OutcomeKind
from toc.store.declared_types import DeclaredTypes

LATER = timedelta(days=1)
NAME = "order.close"
SECRET = "4111 1111 ü"
KEY = new_key_line()


def settings_with(library: Library, *lines: str) -> Settings:
    codecs = {"pii": CodecSettings(key=SecretStr(",".join(lines)))} if lines else {}
    return library.settings.model_copy(update={"codecs": codecs})


@pytest.fixture
def center(library: Library) -> Iterator[TimeoutCenter]:
    with TimeoutCenter(
        settings_with(library, KEY), clock=library.clock, handlers=Registry()
    ) as center:
        yield center


def declare(library: Library, name: str = NAME, **fields: Any) -> None:
    types = DeclaredTypes(library.databases, library.database_metadata.types, 10)
    types.change(name, lambda now: DeclaredType.from_fields(name, fields), "ann")


def raw_attributes(library: Library) -> dict[int, str | None]:
    """The column of all rows, by plain SQL."""
    found: dict[int, str | None] = {}
    for database in library.databases:
        with database.engine.connect() as connection:
            for shard in database.shards:
                text = f"SELECT job_id, attribute FROM toc_job_{shard:04d}"
                found |= {row[0]: row[1] for row in connection.exec_driver_sql(text)}
    return found


def test_each_way_to_schedule_encrypts(library: Library, center: TimeoutCenter) -> None:
    declare(library, codec="pii")
    card = {"card": SECRET}

    async def schedule_async() -> list[int]:
        client = AsyncTimeoutCenter(center)
        calls = [client.schedule(n, LATER, biz_type=NAME, attribute=card) for n in (20, 21)]
        keyed = client.schedule(22, LATER, biz_type=NAME, attribute=card, dedup_key="k")
        found = await asyncio.gather(*calls, keyed)
        await client.close()
        return list(found)

    specs = [
        JobSpec(biz_id=f"A-{n}", action_time=LATER, biz_type=NAME, attribute=card, tenant="shop")
        for n in range(3)
    ]
    ids = [center.schedule(1, LATER, biz_type=NAME, attribute=card)]
    ids.append(center.schedule(2, LATER, biz_type=NAME, attribute=card, dedup_key="once",
                               on_duplicate="once"))  # fmt: skip
    ids += center.schedule_many(specs)
    each = center.schedule_each(specs[:2])
    ids += [it.job_id for it in each if not isinstance(it, Exception)]
    ids += asyncio.run(schedule_async())
    plain = center.schedule(1, LATER, biz_type="report", attribute=card)
    bare = center.schedule(1, LATER, biz_type=NAME)
    raw = raw_attributes(library)
    assert raw.keys() == {*ids, plain, bare}
    assert SECRET in str(raw.pop(plain))
    for text in raw.values():
        assert text is not None
        assert text.startswith(f'{{"{CODEC_KEY}":"pii"')
        assert "card" not in text
        assert "4111" not in text
    assert all(job is not None and job.attribute == card for job in map(center.get, ids))
    empty = center.get(bare)
    assert empty is not None
    assert empty.attribute == {}
    assert [job.attribute for job in center.find("A-1", tenant="shop")] == [card, card]


def test_each_verb_of_recurring_schedules_encrypts(library: Library, center: TimeoutCenter) -> None:
    declare(library, codec="pii")
    card = {"card": SECRET}
    made = center.recur("nightly", every=3600, biz_type=NAME, attribute=card, tenant="shop")
    with TimeoutCenter(settings_with(library, KEY), clock=library.clock) as fresh:
        # This client has not read yet which types have a codec.
        ids = [made.job_id, fresh.recurring.run("nightly", tenant="shop")]
    now = datetime_of(library.now_ms)
    done = center.recurring.backfill("nightly", now - LATER / 12, now, tenant="shop")
    center.recurring.pause("nightly", tenant="shop")
    ids += [*done.job_ids, center.recurring.resume("nightly", tenant="shop").job_id]
    raw = raw_attributes(library)
    assert len(done.job_ids) == 3
    assert raw.keys() == set(ids)
    assert all(text is not None and text.startswith(f'{{"{CODEC_KEY}"') for text in raw.values())
    assert all(job is not None and job.attribute == card for job in map(center.get, raw))


def test_without_the_key_no_job_of_a_schedule_is_written(
    library: Library, center: TimeoutCenter
) -> None:
    declare(library, codec="pii")
    name, now = "nightly", datetime_of(library.now_ms)
    center.recur(name, every=3600, biz_type=NAME)
    raw, before = raw_attributes(library), center.recurring.get(name)

    def fresh(verb: Callable[[TimeoutCenter], object]) -> None:
        with (
            TimeoutCenter(settings_with(library), clock=library.clock) as without,
            pytest.raises(SettingsError, match=r"codecs\.pii"),
        ):
            verb(without)

    fresh(lambda it: it.recur(name, every=60, biz_type=NAME))
    fresh(lambda it: it.recurring.run(name))
    fresh(lambda it: it.recurring.backfill(name, now - LATER, now))
    assert (raw_attributes(library), center.recurring.get(name)) == (raw, before)
    paused = center.recurring.pause(name)
    fresh(lambda it: it.recurring.resume(name))
    assert center.recurring.get(name) == paused


def test_a_settle_without_the_key_leaves_the_chain_to_others(library: Library) -> None:
    store = RecurringStore(library, lambda name: "pii" if name == "report" else None)
    keyed = RecurringStore(library)
    keyed.declare(attribute='{"a":1}')
    before = keyed.row
    keyed.advance(1)
    claimed = keyed.claim()
    with pytest.raises(SettingsError, match=r"codecs\.pii"):
        store.end(claimed)
    assert (keyed.row, keyed.job().status) == (before, Status.RUNNING)
    assert store.library.settle_as(OutcomeKind.DONE, before.job_id or 0, claimed[1])
    with pytest.raises(SettingsError, match=r"codecs\.pii"):
        store.keep()
    assert keyed.row == before


def test_a_replaced_payload_is_bound_to_the_row_of_the_holder(
    library: Library, center: TimeoutCenter
) -> None:
    declare(library, codec="pii")
    options: dict[str, Any] = {"biz_type": NAME, "dedup_key": "k"}
    first = center.schedule(1, LATER, attribute={"n": 1}, **options)
    assert (
        center.schedule(1, LATER * 2, attribute={"n": 2}, on_duplicate="replace", **options)
        == first
    )
    holder = center.get(first)
    assert holder is not None
    assert holder.attribute == {"n": 2}


def test_a_payload_is_encrypted_anew_if_its_job_id_is_taken(
    library: Library, center: TimeoutCenter, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(library, codec="pii")
    state = center._open_connections()
    taken = center.schedule(1, LATER, biz_type=NAME, attribute={"n": 1})
    drawn, ids = state._ids.make_ids, iter([[taken]])
    monkeypatch.setattr(state._ids, "make_ids", lambda bits: next(ids, None) or drawn(bits))
    other = center.schedule(1, LATER, biz_type=NAME, attribute={"n": 2})
    assert other != taken
    found = {job.job_id: job.attribute for job in center.find(1)}
    assert found == {taken: {"n": 1}, other: {"n": 2}}


def test_rows_whose_payloads_were_swapped_are_shown_as_unreadable(
    library: Library, center: TimeoutCenter
) -> None:
    declare(library, codec="pii")
    one = center.schedule(1, LATER, biz_type=NAME, attribute={"n": 1})
    two = center.schedule(1, LATER, biz_type=NAME, attribute={"n": 2})
    raw = raw_attributes(library)
    database = library.databases[0]
    table = database.job_table_name(center._open_connections().shard_of_business(
        library.new(1).business_id
    ))  # fmt: skip
    mark = "?" if database.sqlite else "%s"
    with database.engine.begin() as connection:
        for job_id, other in ((one, two), (two, one)):
            connection.exec_driver_sql(
                f"UPDATE {table} SET attribute = {mark} WHERE job_id = {job_id}", (raw[other],)
            )
    for job_id in (one, two):
        job = center.get(job_id)
        assert job is not None
        assert "another row" in job.attribute["unreadable"]


def test_a_client_without_the_key_writes_nothing_and_reads_a_marker(
    library: Library, center: TimeoutCenter
) -> None:
    declare(library, codec="pii")
    job_id = center.schedule(1, LATER, biz_type=NAME, attribute={"card": SECRET})
    with TimeoutCenter(settings_with(library), clock=library.clock, handlers=Registry()) as other:
        spec = JobSpec(biz_id=2, action_time=LATER, biz_type=NAME, attribute={"a": 1})
        for call in (
            lambda: other.schedule(2, LATER, biz_type=NAME, attribute={"a": 1}),
            lambda: other.schedule_many([spec]),
            lambda: other.schedule_each([spec]),
        ):
            with pytest.raises(SettingsError, match=r"codecs\.pii"):
                call()
        job = other.get(job_id)
        assert job is not None
        assert job.attribute.keys() == {CODEC_KEY, "key", "unreadable"}
        other.schedule(2, LATER, biz_type="report", attribute={"a": 1})
        assert other.cancel(job_id).ok
    assert len(raw_attributes(library)) == 2


def test_the_schema_is_checked_before_the_payload_is_encrypted(
    library: Library, center: TimeoutCenter
) -> None:
    declare(library, codec="pii", payload_schema={"required": ["price"]})
    with pytest.raises(InvalidInput, match="price"):
        center.schedule(1, LATER, biz_type=NAME, attribute={"card": SECRET})
    center.schedule(1, LATER, biz_type=NAME, attribute={"price": 1})
    (text,) = raw_attributes(library).values()
    assert text is not None
    assert "price" not in text


def test_the_codec_of_a_handler_in_this_process_counts_and_a_declared_one_wins(
    library: Library,
) -> None:
    settings = settings_with(library, KEY)
    handlers = Registry()
    handlers.handler("report", codec="pii")(lambda job: None)
    with TimeoutCenter(settings, clock=library.clock, handlers=handlers) as center:
        job_id = center.schedule(1, LATER, biz_type="report", attribute={"card": SECRET})
        assert '"pii"' in str(raw_attributes(library)[job_id])
        declare(library, "report", codec="none")
        center._open_connections().payload_checks._read_s = None
        with pytest.raises(SettingsError, match=r"codecs\.none"):
            center.schedule(2, LATER, biz_type="report")


def test_a_payload_that_would_not_fit_the_column_is_refused(library: Library) -> None:
    limits = library.settings.limits.model_copy(update={"attribute_bytes": 65_535})
    settings = settings_with(library, KEY).model_copy(update={"limits": limits})
    declare(library, codec="pii")
    with TimeoutCenter(settings, clock=library.clock, handlers=Registry()) as center:
        most = PLAIN_BYTES_MAX - len('{"a":""}')
        job_id = center.schedule(1, LATER, biz_type=NAME, attribute={"a": "x" * most})
        job = center.get(job_id)
        assert job is not None
        assert len(job.attribute["a"]) == most
        with pytest.raises(InvalidInput, match="encrypted"):
            center.schedule(1, LATER, biz_type=NAME, attribute={"a": "x" * (most + 1)})
        center.schedule(1, LATER, biz_type="report", attribute={"a": "x" * (most + 1)})

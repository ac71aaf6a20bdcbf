"""What is known of Redis from the answers of the latest calls."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.scripts.rig import TOPIC, Rig, id_in_slot, slot_amount_of
from tests.servers import ServerUnavailableError, start_redis
from tests.servers.process import free_port
from tests.servers.redis import start_redis_replica
from tests.worker.waiting import wait_until
from toc.errors import SchemaMismatch, TimerUnavailable
from toc.testing import TestClock
from toc.timer import redis_fitness
from toc.timer.availability import FORGET_S, TimerAvailability
from toc.timer.redis_errors import is_out_of_memory, is_temporary_refusal
from toc.timer.reminders import Reminder, Reminders

AWAY = redis.ConnectionError("away")
FULL = redis.exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'.")


@pytest.fixture
def availability() -> TimerAvailability:
    return TimerAvailability(TestClock())


def test_one_slot_that_is_refused_is_enough(availability: TimerAvailability) -> None:
    assert availability.is_available
    availability.record_answers("pop", "a", [1, 2, 3], [[], AWAY, []])
    assert not availability.is_available
    availability.record_answers("pop", "a", [1, 3], [[], []])
    availability.record_answers("pop", "b", [2], [[]])
    assert not availability.is_available
    availability.record_answers("pop", "a", [2], [[]])
    assert availability.is_available


def test_what_reads_well_is_not_taken_for_what_pops_well(availability: TimerAvailability) -> None:
    availability.record_answers("pop", "a", [1], [AWAY])
    availability.record_answers("marks", "a", [1], [{}])
    assert not availability.is_available
    availability.record_answers("pop", "a", [1], [[]])
    assert availability.is_available
    availability.record_answers("marks", "a", [1], [AWAY])
    availability.record_answers("pop", "a", [1], [[]])
    assert availability.is_available
    availability.record_answers("marks", "a", [1], [AWAY])
    availability.record_answers("marks", "a", [1], [{}])
    assert availability.is_available


def test_one_of_a_slots_commands_is_enough(availability: TimerAvailability) -> None:
    availability.record_answers("depths", "a", [1, 1, 1, 2, 2, 2], [3, AWAY, [], 3, 0, []])
    assert not availability.is_available
    availability.record_answers("depths", "a", [1, 1, 1], [3, 0, []])
    assert availability.is_available


def test_a_refusal_that_nobody_meets_again_is_forgotten() -> None:
    clock = TestClock()
    availability = TimerAvailability(clock)
    availability.record_answers("pop", "a", [1], [AWAY])
    clock.advance(FORGET_S)
    assert not availability.is_available
    clock.advance(0.001)
    assert availability.is_available
    availability.record_answers("pop", "a", [1], [AWAY])
    assert not availability.is_available


@pytest.mark.parametrize("verb", ["arm", "load_page", "begin_mark"])
def test_full_is_not_away(availability: TimerAvailability, verb: str) -> None:
    availability.record_answers(verb, "a", [1, 2], [FULL, [b"0", 1]])
    assert (availability.takes_reminders, availability.is_available) == (False, True)
    availability.record_answers(verb, "a", [1], [AWAY])  # which says nothing about its memory
    assert (availability.takes_reminders, availability.is_available) == (False, False)
    availability.record_answers(verb, "a", [1], [[b"0", 1]])
    assert (availability.takes_reminders, availability.is_available) == (True, True)


def test_a_pop_that_memory_forbids_is_a_refusal(availability: TimerAvailability) -> None:
    availability.record_answers("pop", "a", [1], [FULL])
    assert (availability.takes_reminders, availability.is_available) == (True, False)


def test_a_refusal_is_logged_when_it_begins(
    availability: TimerAvailability, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            availability.record_answers("pop", "a", [1, 2], [AWAY, AWAY])
        availability.record_answers("pop", "a", [1, 2], [[], []])
    # Other threads of this process may log meanwhile.
    assert (
        len([record for record in caplog.records if record.name == "toc.timer.availability"]) == 2
    )


def test_what_older_servers_say_inside_a_script() -> None:
    def inside(text: str) -> Exception:
        return redis.ResponseError(
            f"Error running script (call to f_0): @user_script:1: @user_script: 1: -{text} ..."
        )

    assert is_out_of_memory(inside("OOM"))
    assert is_temporary_refusal(inside("READONLY"))
    assert not is_out_of_memory(inside("READONLY"))
    assert not is_temporary_refusal(inside("WRONGTYPE"))


# ---- the server's facts


def test_one_node_that_is_set_wrongly_is_enough() -> None:
    infos = [
        {"redis_version": "7.0.15", "maxmemory_policy": "noeviction"},
        {"redis_version": "6.2.14", "maxmemory_policy": "volatile-lru"},
        {"redis_version": "10.0.1", "maxmemory_policy": "noeviction"},
    ]
    found = redis_fitness.summarize_node_infos(infos)
    assert found == {"version": "6.2.14", "maxmemory_policy": "volatile-lru"}
    assert "volatile-lru" in redis_fitness.why_unfit_for_reminders(found)
    assert (
        redis_fitness.why_unfit_for_reminders(redis_fitness.summarize_node_infos(infos[::2])) == ""
    )
    assert "6.0.1" in redis_fitness.why_unfit_for_reminders(
        {"version": "6.0.1", "maxmemory_policy": "noeviction"}
    )


@pytest.mark.parametrize("flavour", ["7", "6.2"])
def test_a_policy_that_was_not_seen_at_the_start_is_seen_later(
    tmp_path: Path, flavour: Any, caplog: pytest.LogCaptureFixture
) -> None:
    clock, port = TestClock(), free_port()
    slots = Reminders(f"redis://127.0.0.1:{port}", "toc", clock, slot_amount_of)
    with pytest.raises(TimerUnavailable):
        slots.raise_if_unfit()
    try:
        server = start_redis(tmp_path, flavour, "--maxmemory-policy", "allkeys-lru", port=port)
    except ServerUnavailableError as error:
        pytest.skip(str(error))
    with server:
        for _ in range(3):
            slots.arm(TOPIC, [Reminder(1, id_in_slot(1))])
            assert [popped.ids for popped in slots.pop(TOPIC, [(1, 5)], 1000)] == [[id_in_slot(1)]]
            assert not slots.is_available  # the scanner must not count on it
        errors = [r for r in caplog.records if r.levelno == logging.ERROR]
        assert ["allkeys-lru" in record.getMessage() for record in errors] == [True]
        with pytest.raises(SchemaMismatch, match="allkeys-lru"):
            slots.raise_if_unfit()
        with redis.Redis(port=port) as client:
            client.config_set("maxmemory-policy", "noeviction")
        clock.advance(59)
        slots.read_heads(TOPIC, [1], 1.0)
        assert not slots.is_available
        clock.advance(1)
        slots.read_heads(TOPIC, [1], 1.0)
        assert slots.is_available
    slots.close()


def test_a_server_of_another_version_is_learned(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = TestClock()
    slots = Reminders(rig.url, rig.namespace, clock, slot_amount_of)
    with monkeypatch.context() as patch:
        older = {**slots.read_server_info(), "version": "6.2.0"}
        patch.setattr(slots, "read_server_info", lambda: older)
        slots.raise_if_unfit()
    assert slots._scripts is not None
    assert not slots._scripts.flags
    clock.advance(60)
    slots.read_heads(TOPIC, [1], 1.0)
    assert slots._scripts.flags == rig.knows_flags
    slots.close()


@pytest.mark.parametrize("flavour", ["6.2", "7", "8"])
def test_a_demoted_masters_connections_are_given_up(tmp_path: Path, flavour: Any) -> None:
    # Its name may lead to another server by now, as with a virtual address.
    try:
        master = start_redis(tmp_path / "master", flavour)
    except ServerUnavailableError as error:
        pytest.skip(str(error))
    with master, start_redis_replica(tmp_path / "replica", master, flavour) as replica:
        slots = Reminders(f"{master.url}?client_name=reminded", "toc", TestClock(), slot_amount_of)
        slots.arm(TOPIC, [Reminder(1, id_in_slot(1))])
        with redis.Redis.from_url(replica.url) as client:
            client.replicaof("NO", "ONE")
        with redis.Redis.from_url(master.url) as client:
            host, _, port = replica.url.partition("://")[2].partition("/")[0].partition(":")
            client.replicaof(host, port)
            for amount in (1, 2):
                wanted = [Reminder(1, id_in_slot(slot)) for slot in range(amount)]
                with pytest.raises(TimerUnavailable):
                    slots.arm(TOPIC, wanted)
                wait_until(
                    lambda: all(one["name"] != "reminded" for one in client.client_list()),
                    "its connections are closed",
                )
        slots.close()

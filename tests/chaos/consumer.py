"""A remote consumer of the rig: `python -m tests.chaos.consumer FILE`, its plan as JSON.

Plain HTTP, as a service in another language would do it. Each thread leases jobs from one of the replicas,
writes down their starts and ends, and settles them at another one or at the same. If the answer with a lease
comes so late that less than half of the lease may be left, the jobs are released unstarted, and the journal
has no start. If the answer is lost, the journal has nothing: the attempt was leased to nobody.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.chaos.plan import (
    FENCED_ATTEMPTS,
    PULL,
    PULL_LATE,
    PULL_LONG,
    chance,
    dump_threads_when_asked,
    end_with_the_rig,
    true_clock,
)
from toc.runtime.process_info import process_name
from toc.testing import Ended, Journal, LeaseUnanswered, Started

THREADS = {PULL_LONG: 3, PULL_LATE: 6}
LEASE_MAX = {PULL: 20, PULL_LONG: 1, PULL_LATE: 1}
# Parts of a lease. ANSWER: a job starts only if its lease was asked for so recently. HOLD: a run ends without
# an extension for so long.
WAIT_PART, ANSWER_PART, HOLD_PART = 0.25, 0.5, 0.55
EXTEND_PART, SETTLE_PART = 0.15, 0.25
RETRY_S = 0.1
MAY_PASS = (429, 503)

log = logging.getLogger(__name__)
Lease = dict[str, Any]


class UnexpectedAnswerError(Exception):
    """An answer that a replica of `toc web` must not give to this consumer."""


class Consumer:
    """One thread of a consumer: leases, works, settles."""

    def __init__(
        self, plan: dict[str, Any], biz_type: str, journal: Journal, rng: random.Random,
        ended: threading.Event,
    ) -> None:  # fmt: skip
        self._type, self._journal, self._rng, self._ended = biz_type, journal, rng, ended
        self._urls, self._lease_s = list(plan["urls"]), plan["lease_s"]
        self._now, self._process = true_clock(0), process_name()
        headers = {"Authorization": f"Bearer {plan['token']}"}
        self._client = httpx.Client(headers=headers, trust_env=False)

    def run(self) -> None:
        while not self._ended.is_set():
            asked_s = time.monotonic()
            asked_ms = self._now()
            leases = self._lease()
            if leases and time.monotonic() - asked_s <= self._lease_s * ANSWER_PART:
                self._work(leases, asked_s)
            elif leases is None or leases:
                self._journal.write(LeaseUnanswered(self._type, asked_ms, self._now()))
                if leases:
                    self._settle("release", leases)
                else:
                    self._ended.wait(RETRY_S)

    # ---- calls

    def _lease(self) -> list[Lease] | None:
        """None if the call failed: the server may have leased jobs to nobody."""
        wait_s = self._lease_s * WAIT_PART
        document = {
            "types": [self._type], "max": LEASE_MAX[self._type], "wait_s": wait_s,
            "lease_s": self._lease_s,
        }  # fmt: skip
        limit_s = wait_s + self._lease_s
        found = self._post(self._rng.choice(self._urls), "/v1/leases", document, limit_s)
        if found is None:
            return None
        leases: list[Lease] = found["leases"]
        return leases

    def _settle(self, verb: str, leases: list[Lease], **facts: Any) -> None:
        """Tries, at each replica in turn, until all leases are settled, or certainly over."""
        began_s = time.monotonic()
        self._rng.shuffle(self._urls)
        left = [{"job_id": it["job_id"], "token": it["token"], **facts} for it in leases]
        tries = 0
        while left:
            url = self._urls[tries % len(self._urls)]
            results = self._post(
                url, f"/v1/leases:{verb}", {"items": left}, self._lease_s * SETTLE_PART
            )
            if results is not None:
                unsettled = {
                    it["job_id"] for it in results["results"] if it["outcome"] == "unavailable"
                }
                left = [it for it in left if it["job_id"] in unsettled]
            tries += 1
            if left:
                if time.monotonic() - began_s > 2 * self._lease_s:
                    return
                time.sleep(RETRY_S)

    def _extend(self, lease: Lease) -> str:
        """The outcome; "unavailable": the next call may succeed."""
        document = {
            "items": [
                {"job_id": lease["job_id"], "token": lease["token"], "lease_s": self._lease_s}
            ]
        }
        url = self._rng.choice(self._urls)
        found = self._post(url, "/v1/leases:extend", document, self._lease_s * SETTLE_PART)
        return "unavailable" if found is None else str(found["results"][0]["outcome"])

    def _post(
        self, url: str, path: str, document: dict[str, Any], limit_s: float
    ) -> dict[str, Any] | None:
        """The answer; None: there was none, or it asks to come again."""
        try:
            answer = self._client.post(url + path, json=document, timeout=limit_s)
        except httpx.TransportError as error:
            log.info("%s%s: %r", url, path, error)
            return None
        if answer.status_code == 200:
            found: dict[str, Any] = answer.json()
            return found
        if answer.status_code in MAY_PASS:
            return None
        raise UnexpectedAnswerError(f"{path}: {answer.status_code} {answer.text}")

    # ---- work

    def _work(self, leases: list[Lease], asked_s: float) -> None:
        for lease in leases:
            self._journal.write(
                Started(
                    int(lease["job_id"]),
                    lease["biz_type"],
                    lease["attempt"],
                    self._now(),
                    self._process,
                    lease["token"],
                )
            )
        done, failed = list[Lease](), list[Lease]()
        for lease in leases:
            has_failed = self._act(lease, asked_s)
            # Written before the settlement: the promise is about the work, not about the answer.
            self._journal.write(
                Ended(
                    int(lease["job_id"]),
                    lease["attempt"],
                    has_failed,
                    self._now(),
                    self._process,
                    lease["token"],
                )
            )
            (failed if has_failed else done).append(lease)
        if done:
            self._settle("finish", done)
        if failed:
            self._settle("fail", failed, reason="as planned")

    def _act(self, lease: Lease, asked_s: float) -> bool:
        """Does what the payload says; whether the attempt failed."""
        wants, attempt = lease["payload"], lease["attempt"]
        if "leases" in wants:  # longer than a lease, extended meanwhile
            return not self._hold(lease, asked_s, asked_s + wants["leases"] * self._lease_s)
        if "late" in wants:
            if attempt == 1:  # past its lease, without an extension: its settlement comes too late
                time.sleep(wants["late"] * self._lease_s)
                return False
            time.sleep(self._lease_s / 4)  # meanwhile the first one may try to settle
            return bool(attempt <= FENCED_ATTEMPTS)
        return bool(attempt <= wants.get("fail", 0))

    def _hold(self, lease: Lease, asked_s: float, end_s: float) -> bool:
        """Extends the lease until `end_s`. False: it is lost, or soon over without an extension."""
        while (now_s := time.monotonic()) < end_s:
            time.sleep(max(0.0, min(self._lease_s * EXTEND_PART, end_s - now_s)))
            extended_s = time.monotonic()
            outcome = self._extend(lease)
            if outcome == "extended":
                asked_s = extended_s
            elif outcome != "unavailable":
                return False
            if time.monotonic() - asked_s > self._lease_s * HOLD_PART:
                return False
        return True


def guarded(act: Callable[[], None]) -> Callable[[], None]:
    """A thread that raised ends the process, which the rig sees."""

    def run() -> None:
        try:
            act()
        except BaseException:
            log.exception("a consumer's thread has ended")
            os._exit(3)

    return run


def main(plan: dict[str, Any]) -> int:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
    dump_threads_when_asked()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_the_rig, daemon=True).start()
    journal = Journal(Path(plan["journal"]))
    threads = [
        threading.Thread(
            target=guarded(
                Consumer(plan, name, journal, chance(f"{plan['seed']}:{name}:{n}"), ended).run
            )
        )
        for name, count in ({PULL: plan["waiters"]} | THREADS).items()
        for n in range(count)
    ]
    for thread in threads:
        thread.start()
    Path(plan["ready"]).touch()
    for thread in threads:
        thread.join()
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text())))

"""What handlers tell of their jobs: written under the token only, with and without an outcome."""

from __future__ import annotations

import pytest

from tests.contract.breaks import lose_answers
from tests.contract.library import LEASE_MS, Library
from toc.domain.claim_tokens import ALONE
from toc.domain.job import Job, Status
from toc.domain.result_document import Progress
from toc.store.claims import Outcome, OutcomeKind

TOLD = '{"progress":[1,2],"result":"ä€\\"%s?"}'


def job_of(library: Library, job_id: int) -> Job:
    job = library.jobs.get(job_id)
    assert job is not None
    return job


def settle(library: Library, kind: OutcomeKind, *job_ids: int, token: str = "one") -> int:
    outcomes = [
        Outcome(job_id, token, kind, library.now_ms + 1000, "why", document=TOLD)
        for job_id in job_ids
    ]
    return len(library.settle(*outcomes))


@pytest.mark.parametrize(
    "kind", [kind for kind in OutcomeKind if kind is not OutcomeKind.GIVE_BACK]
)
def test_an_outcome_brings_its_document(library: Library, kind: OutcomeKind) -> None:
    job_id, plain = library.running("one"), library.running("one")
    assert settle(library, kind, job_id)
    assert library.settle_as(kind, plain, "one", library.now_ms + 1000)
    job = job_of(library, job_id)
    assert not job.status.live or kind in (OutcomeKind.RETRY, OutcomeKind.SNOOZE)
    assert (job.last_progress, job.result) == (Progress(1, 2), 'ä€"%s?')
    assert job_of(library, plain).result is None


def test_a_group_of_done_jobs_keeps_each_document(library: Library) -> None:
    ids = [library.running("one") for _ in range(3)]
    outcomes = [
        Outcome(job_id, "one", OutcomeKind.DONE, document=f'{{"result":{n}}}' if n else "")
        for n, job_id in enumerate(ids)
    ]
    settled = [pair for outcome in outcomes for pair in library.settle(outcome)]
    assert len(settled) == 3
    assert [job_of(library, job_id).result for job_id in ids] == [None, 1, 2]
    assert {job_of(library, job_id).status for job_id in ids} == {Status.DONE}


def test_a_lost_answer_repeats_the_document_once(library: Library) -> None:
    job_id = library.running("one")
    with lose_answers(library.home(job_id)) as lost:
        assert settle(library, OutcomeKind.DONE, job_id)
    assert lost.times == 1
    assert job_of(library, job_id).result == 'ä€"%s?'


@pytest.mark.invariant("I5")
def test_a_stale_token_writes_no_document(library: Library) -> None:
    job_id = library.running("one")
    library.clock.advance(LEASE_MS / 1000)
    library.take_over(job_id, "one", "two")
    assert not settle(library, OutcomeKind.DONE, job_id)
    library.claims.write_documents(library.home(job_id), [(job_id, "one", TOLD)])
    assert job_of(library, job_id).result is None
    library.claims.write_documents(library.home(job_id), [(job_id, "two", TOLD)])
    assert job_of(library, job_id).last_progress == Progress(1, 2)


def test_a_document_is_written_when_the_mark_alone_was_removed(library: Library) -> None:
    job_id = library.running("one")
    library.claims.write_documents(library.home(job_id), [(job_id, "one" + ALONE, TOLD)])
    assert job_of(library, job_id).last_progress == Progress(1, 2)


def test_a_job_that_has_ended_gets_no_progress(library: Library) -> None:
    job_id = library.running("one")
    library.settle_as(OutcomeKind.DONE, job_id, "one")
    library.claims.write_documents(library.home(job_id), [(job_id, "one", TOLD)])
    assert job_of(library, job_id).last_progress is None


def test_the_result_stays_after_a_redrive(library: Library) -> None:
    job_id = library.running("one")
    settle(library, OutcomeKind.BURY, job_id)
    library.jobs.redrive(job_id, library.now_ms)
    assert job_of(library, job_id).last_progress == Progress(1, 2)


def test_a_locked_row_is_left_out(library: Library) -> None:
    if library.sqlite:
        pytest.skip("SQLite has one writer and no row locks")
    locked, free = library.running("one"), library.running("one", biz_id=2)
    home = library.home(locked)
    table = f"toc_job_{library.shard(locked):04d}"
    with home.engine.begin() as connection:
        connection.exec_driver_sql(f"SELECT * FROM {table} WHERE job_id = {locked} FOR UPDATE")
        library.claims.write_documents(home, [(locked, "one", TOLD)])
        library.claims.write_documents(library.home(free), [(free, "one", TOLD)])
    assert job_of(library, locked).last_progress is None
    assert job_of(library, free).last_progress == Progress(1, 2)

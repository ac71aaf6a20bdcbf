"""The actions that change jobs, by their id or by their business key.

A job_id can be guessed. So each verb reads the row, and asks whether the caller may change jobs of its type
and tenant; both never change, so nothing can happen in between. A job that the caller may not change is
answered as one that does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from toc.access.authorise import is_allowed
from toc.access.caller import Scope
from toc.domain.biz_ids import check_business_id
from toc.domain.job import Answer, AnswerKind, Job, Status
from toc.errors import InvalidInput
from toc.http.backend import Backend
from toc.http.call import Action, Call, Reply
from toc.http.declared import not_allowed
from toc.http.job_checks import with_names_of_http
from toc.http.job_documents import answer_document, parse_biz_id, parse_job_id, parse_when

Change = Callable[[Backend, Call, int], Answer]
"""Changes the job with this id."""


def _cancel(backend: Backend, call: Call, job_id: int) -> Answer:
    return backend.center.cancel(job_id, reason=call.body.reason, actor=call.caller.actor)


def _reschedule(backend: Backend, call: Call, job_id: int) -> Answer:
    when = parse_when(call.body.action_time, call.body.delay)
    return backend.center.reschedule(job_id, when, reason=call.body.reason, actor=call.caller.actor)


def _redrive(backend: Backend, call: Call, job_id: int) -> Answer:
    return backend.center.redrive(job_id, reason=call.body.reason, actor=call.caller.actor)


def _discard(backend: Backend, call: Call, job_id: int) -> Answer:
    return backend.center.discard(job_id, reason=call.body.reason, actor=call.caller.actor)


def _run_now(backend: Backend, call: Call, job_id: int) -> Answer:
    return backend.center.run_now(job_id, reason=call.body.reason, actor=call.caller.actor)


# ---- by id


def change_by_id(scope: Scope, change: Change) -> Action:
    """The action of POST /v1/jobs/{job_id}:VERB."""

    async def act(backend: Backend, call: Call) -> Reply:
        job_id = parse_job_id(call.path["job_id"])

        def read_and_change() -> Answer:
            job = backend.center.get(job_id)
            if job is None or not is_allowed(call.caller, scope, job.biz_type, job.tenant):
                return Answer(AnswerKind.UNKNOWN)
            return change(backend, call, job_id)

        answer = await backend.calls.run(backend.database_of_job(job_id), read_and_change)
        return _reply(answer, str(job_id))

    return act


cancel_job = change_by_id("cancel", _cancel)
reschedule_job = change_by_id("cancel", _reschedule)
redrive_job = change_by_id("operate", _redrive)
discard_job = change_by_id("operate", _discard)
run_job_now = change_by_id("operate", _run_now)


# ---- by business key


def change_by_key(
    scope: Scope, change: Change, choose: Callable[[Sequence[Job]], Job | None] | None
) -> Action:
    """The action of POST /v1/types/{biz_type}/jobs:VERB.

    choose(jobs): the job to change, among those of the business id, newest first; None: all live jobs.
    """

    async def act(backend: Backend, call: Call) -> Reply:
        biz_type, caller, body = call.path["biz_type"], call.caller, call.body
        if not is_allowed(caller, scope, biz_type, caller.tenant):
            raise not_allowed(scope)
        biz_id = parse_biz_id(body.biz_id, body.biz_id_is_text, digits_are_text=True)
        business = check_business_id(biz_id, caller.tenant)

        def find_and_change() -> Answer:
            if choose is None:
                return backend.center.cancel(
                    biz_id=biz_id, biz_type=biz_type, dedup_key=body.key, tenant=caller.tenant,
                    reason=body.reason, actor=caller.actor,
                )  # fmt: skip
            jobs = backend.center.find(biz_id, biz_type, tenant=caller.tenant, dedup_key=body.key)
            job = choose(jobs)
            return Answer(AnswerKind.UNKNOWN) if job is None else change(backend, call, job.job_id)

        try:
            index = backend.database_of_business(business)
            answer = await backend.calls.run(index, find_and_change)
        except InvalidInput as error:
            raise with_names_of_http(error) from None
        return _reply(answer, f"{biz_type} {business.given_id!r} {body.key!r}")

    return act


def _choose_live(jobs: Sequence[Job]) -> Job | None:
    """The only live job, else the newest that has ended. Raises InvalidInput if several are live."""
    live = [job for job in jobs if job.status.live]
    if len(live) > 1:
        raise InvalidInput("biz_id", live[0].biz_id, f"{len(live)} live jobs match: give key")
    return live[0] if live else next(iter(jobs), None)


def _choose_dead(jobs: Sequence[Job]) -> Job | None:
    """The newest dead job, else the newest job."""
    dead = (job for job in jobs if job.status is Status.DEAD)
    return next(dead, next(iter(jobs), None))


cancel_by_key = change_by_key("cancel", _cancel, None)
reschedule_by_key = change_by_key("cancel", _reschedule, _choose_live)
redrive_by_key = change_by_key("operate", _redrive, _choose_dead)
run_now_by_key = change_by_key("operate", _run_now, _choose_live)


def _reply(answer: Answer, target: str) -> Reply:
    return Reply(
        answer_document(answer),
        outcome=str(answer),
        target=target,
        rows_changed=int(answer.ok),
    )

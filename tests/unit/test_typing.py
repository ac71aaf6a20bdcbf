"""What a type checker says of a business' code: mistakes that would be found only when a job runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FORMS = """
from dataclasses import dataclass
from datetime import timedelta
from pydantic import BaseModel

class Close(BaseModel):
    reason: str
    notify: bool = True

@dataclass
class Report:
    pages: int

@toc.handler("order.close", payload=Close)
def close(job: toc.Job, order: Close) -> None:
    print(order.reason)

@toc.handler("report", payload=Report)
async def report(job: toc.Job, form: Report) -> toc.Retry | None:
    return None

"""
GOOD_FORMS = f"""
import toc
{FORMS}
one: int = close.schedule(42, timedelta(minutes=30), reason="unpaid", notify=False)
toc.every("0 3 * * *")(report).schedule("A-1", timedelta(), pages=3)
two: int = report.schedule("A-1", timedelta(), 3)
three: int = close.with_options(dedup_key="x").schedule(42, timedelta(), reason="unpaid")
attribute = close.attribute(reason="unpaid")
toc.schedule(42, timedelta(), biz_type=close.biz_type, attribute=attribute)

@toc.hooks.after_run
def count(run: toc.HandlerRun) -> None:
    print(run.job.job_id, run.error)

@toc.hooks.before_schedule
def note(call: toc.ScheduleCall) -> None:
    call.trace = "x"
"""
GOOD = """
from datetime import timedelta
import toc

@toc.handler("a")
def plain(job: toc.Job) -> None:
    print(job.biz_id)

@toc.handler("b", timeout=3)
def verdicts(job: toc.Job) -> toc.Retry | toc.Drop | None:
    return toc.Retry(after=3) if job.attempts else None

@toc.handler("c")
async def later(job: toc.Job) -> toc.Snooze | None:
    return None

class Handler:
    def __call__(self, job: toc.Job) -> None: ...
    def method(self, job: toc.Job) -> None: ...

toc.handler("d")(Handler())
toc.handler("e")(Handler().method)
plain(toc.get(1))  # type: ignore[arg-type] # the decorated function keeps its own type

job_id: int = toc.schedule(42, timedelta(minutes=1))
made = toc.schedule(42, timedelta(minutes=1), details=True)
print(made.created, made.did == "kept")
job_ids: list[int] = toc.schedule_many([(1, timedelta())])
print(toc.schedule_many([(1, timedelta())], details=True)[0].running)
toc.every(60)(plain)
answer = toc.cancel(biz_id=42, biz_type=None)
match answer.kind:
    case toc.AnswerKind.CANCELLED | toc.AnswerKind.UNKNOWN:
        print(answer.ok, answer.hint)
jobs: list[toc.JobSpec] = [{"biz_id": 1, "action_time": timedelta()}]
text_id: int = toc.schedule("A-42", timedelta(minutes=1), tenant="shop")
toc.cancel(biz_id="A-42", tenant="shop")
toc.reschedule(timedelta(), biz_id="A-42")
more: list[int] = toc.schedule_many([("A-42", timedelta()), (42, timedelta())])
specs: list[toc.JobSpec] = [{"biz_id": "A-42", "action_time": timedelta(), "tenant": "shop"}]
for job in toc.find("A-42"):
    business: int | str = job.biz_id
"""

BAD = {
    "no parameter": ('@toc.handler("a")\ndef f() -> None: ...', "type-var"),
    "two parameters": ('@toc.handler("a")\ndef f(a: toc.Job, b: int) -> None: ...', "type-var"),
    "not a job": ('@toc.handler("a")\ndef f(order_id: int) -> None: ...', "type-var"),
    "a verdict's class": (
        '@toc.handler("a")\ndef f(job: toc.Job) -> type[toc.Retry]: return toc.Retry',
        "type-var",
    ),
    "a generator": (
        '@toc.handler("a")\ndef f(job: toc.Job) -> collections.abc.Iterator[int]: yield 1',
        "type-var",
    ),
    "without brackets": ("@toc.handler\ndef f(job: toc.Job) -> None: ...", "call-overload"),
    "a payload's field is missing": (
        FORMS + "close.schedule(42, timedelta(minutes=1))",
        "call-arg",
    ),
    "a payload's field has another type": (
        FORMS + 'report.schedule(42, timedelta(minutes=1), pages="three")',
        "arg-type",
    ),
    "an unknown field": (
        FORMS + 'report.schedule(42, timedelta(minutes=1), pages=1, why="x")',
        "call-arg",
    ),
    "a handler of another payload": (
        FORMS + '@toc.handler("x", payload=Close)\ndef f(job: toc.Job, p: Report) -> None: ...',
        "arg-type",
    ),
    "a handler without the payload": (
        FORMS + '@toc.handler("x", payload=Close)\ndef f(job: toc.Job) -> None: ...',
        "arg-type",
    ),
    "a hook of a job": ("@toc.hooks.before_run\ndef f(job: toc.Job) -> None: ...", "type-var"),
    "a key is missing": ('a: toc.JobSpec = {"biz_id": 1}', "typeddict-item"),
    "a misspelt kind": ("toc.AnswerKind.CANCLED", "attr-defined"),
}


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What mypy says of each file, by its name: one run, for a run costs seconds."""
    folder = tmp_path_factory.mktemp("typed")
    files = {"good": GOOD, "forms": GOOD_FORMS} | {
        f"bad_{n}": f"import collections.abc\nimport toc\n{code}\n"
        for n, (code, _) in enumerate(BAD.values())
    }
    for name, code in files.items():
        (folder / f"{name}.py").write_text(code)
    paths = [str(folder / f"{name}.py") for name in files]
    # With the cache of `make lint`: without one mypy reads all of toc and its libraries again.
    run = [sys.executable, "-m", "mypy", "--strict", *paths]
    ran = subprocess.run(run, capture_output=True, text=True, check=False, cwd=ROOT)
    assert ran.stderr == ""
    return {
        name: "\n".join(line for line in ran.stdout.splitlines() if f"{name}.py:" in line)
        for name in files
    }


def test_right_code_is_taken(lines: dict[str, str]) -> None:
    assert lines["good"] == ""
    assert lines["forms"] == ""


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_found_before_it_runs(lines: dict[str, str], case: str) -> None:
    found = lines[f"bad_{list(BAD).index(case)}"]
    assert f"[{BAD[case][1]}]" in found

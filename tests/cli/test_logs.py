"""Log lines: one for each record, whatever text of a stranger stands in it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from toc.cli import logs
from toc.cli.exit_codes import USAGE, print_error, print_error_line
from toc.cli.main import main
from toc.cli.output import Output
from toc.domain.job import Job, Status
from toc.domain.run_control import RunControl
from toc.domain.secret_masking import SHOWN_CHARS_MAX
from toc.handlers.current_job import running_job
from toc.handlers.hooks import CallBatch, HandlerRun

FORGED = "x\n2026-11-23T08:00:00.000Z ERROR toc.node all jobs are lost\r\x1b[2J\x9b31m\u202e\u2028y"
ESCAPED = (
    r"x\n2026-11-23T08:00:00.000Z ERROR toc.node all jobs are lost"
    r"\x0d\x1b[2J\x9b31m\u202e\u2028y"
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def root() -> Iterator[None]:
    logger = logging.getLogger()
    before = (logger.level, list(logger.handlers))
    yield
    logger.handlers[:] = before[1]
    logger.setLevel(before[0])


def start_logging(monkeypatch: pytest.MonkeyPatch, *, as_json: bool) -> io.StringIO:
    """What is logged from now on."""
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    logs.configure_logging(logging.INFO, as_json=as_json)
    return stream


def logged(
    monkeypatch: pytest.MonkeyPatch, *, as_json: bool = False, stream: io.StringIO | None = None
) -> list[str]:
    """What is written when a stranger's text stands in a message, and in a traceback."""
    stream = stream or io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("COLUMNS", "400")
    logs.configure_logging(logging.INFO, as_json=as_json)
    try:
        raise ValueError(FORGED)  # noqa: TRY301 - it has to be raised somewhere
    except ValueError:
        logging.getLogger("toc.test").exception("job of type %s fails", FORGED)
    return stream.getvalue().split("\n")[:-1]


def test_a_strangers_text_begins_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *rest = logged(monkeypatch)
    assert first.endswith(f" ERROR toc.test job of type {ESCAPED} fails")
    assert [line for line in rest if not line.startswith("  ")] == []
    # Line breaks of a traceback stay; what the error says is escaped like all else.
    assert rest[-1] == "  " + ESCAPED.partition(r"\n")[2]
    assert all(line.isprintable() for line in (first, *rest))


def test_nor_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    logged(monkeypatch, stream=stream)
    assert "\x1b[2J" not in stream.getvalue()
    assert "\n2026-11-23" not in stream.getvalue()
    assert "job of type x\\n2026" in stream.getvalue()


def test_nor_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = logged(monkeypatch, as_json=True)
    assert line.isprintable()
    assert json.loads(line)["message"] == f"job of type {FORGED} fails"
    assert json.loads(line)["exception"].endswith(f"ValueError: {FORGED}")


@pytest.mark.parametrize("as_json", [False, True])
def test_nor_does_the_name_of_a_logger(monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    """A handler may name one after what its job holds."""
    stream = start_logging(monkeypatch, as_json=as_json)
    logging.getLogger(FORGED).warning("kept")
    (line,) = stream.getvalue().splitlines()
    assert line.isprintable()
    assert as_json or line.endswith(f" WARNING {ESCAPED} kept")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_line_of_a_handler_names_its_job(monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    stream = start_logging(monkeypatch, as_json=as_json)
    job = Job(7, 42, "order.close", Status.RUNNING, 0, {}, None, 2, None)
    token = running_job.set(job)
    logging.getLogger("shop").info("closing")
    running_job.reset(token)
    logging.getLogger("shop").info("outside")
    inside, outside = stream.getvalue().splitlines()
    if as_json:
        ids = {"job_id": "7", "biz_type": "order.close", "biz_id": "42", "attempt": 2}
        assert json.loads(inside).items() >= ids.items()
        assert not ids.keys() & json.loads(outside).keys()
    else:
        assert inside.endswith(" INFO shop closing [job 7 of order.close, attempt 2]")
        assert outside.endswith(" INFO shop outside")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_wrong_call_of_a_logger_is_one_line_too(
    monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    stream = start_logging(monkeypatch, as_json=as_json)
    logging.getLogger("shop").info("%d closed", "mysql://u:secret@host/toc")
    (line,) = stream.getvalue().splitlines()
    text = json.loads(line)["message"] if as_json else line
    assert text.endswith("%d closed (the arguments of this log call do not fit: TypeError)")
    assert "secret" not in line


@pytest.mark.parametrize("as_json", [False, True])
def test_a_field_that_the_user_sets_is_kept(monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    stream = start_logging(monkeypatch, as_json=as_json)
    logging.getLogger("shop").info("closing", extra={"job_id": 5})
    (line,) = stream.getvalue().splitlines()
    if as_json:
        assert json.loads(line)["job_id"] == "5"
        assert "biz_type" not in json.loads(line)
    else:
        assert line.endswith(" INFO shop closing")


class Textless:
    def __str__(self) -> str:
        raise ValueError("no text")


SECRET_URL = "mysql://toc:hunter2@db/toc"
RECURSIVE: list[object] = []
RECURSIVE.append(RECURSIVE)


@pytest.mark.parametrize("field", ["job_id", "biz_type", "attempt", "trace_id"])
def test_whatever_a_field_has_the_line_is_json(monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    shown = [
        ({"a": {1}}, "{'a': {1}}"),
        (float("nan"), "nan"),
        (b"ab", "b'ab'"),
        (RECURSIVE, "[[...]]"),
        (Textless(), "(this has no text: ValueError)"),
        (10**5000, "(this has no text: ValueError)"),
        (SECRET_URL, "mysql://toc:***@db/toc"),
    ]
    stream = start_logging(monkeypatch, as_json=True)
    for value, _ in shown:
        logging.getLogger("shop").info("closing", extra={field: value})
    lines = stream.getvalue().splitlines()
    assert [json.loads(line)[field] for line in lines] == [text for _, text in shown]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_message_without_a_text_is_one_line(
    monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    stream = start_logging(monkeypatch, as_json=as_json)
    logging.getLogger("shop").info(Textless())
    (line,) = stream.getvalue().splitlines()
    assert "(this has no text: ValueError)" in line


@pytest.mark.parametrize("as_json", [False, True])
def test_every_text_of_a_line_is_masked_and_has_a_bound(
    monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    stream = start_logging(monkeypatch, as_json=as_json)
    text = f"{SECRET_URL} {'x' * 200_000}"
    logging.getLogger(text).info(
        text, extra={"job_id": 7, "biz_type": text, "biz_id": text, "attempt": 1, "trace_id": text}
    )
    (line,) = stream.getvalue().splitlines()
    assert "hunter2" not in line
    assert len(line) < 6 * SHOWN_CHARS_MAX


def test_ids_of_a_span_are_in_json_only_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = start_logging(monkeypatch, as_json=True)
    control = RunControl(0)
    job = Job(7, 42, "order.close", Status.RUNNING, 0, {}, None, 2, None, _control=control)
    reset = running_job.set(job)
    logging.getLogger("shop").info("no span")
    HandlerRun(job, CallBatch(1, ("order.close",))).set_trace_ids("a" * 32, "b" * 16)
    logging.getLogger("shop").info("with a span")
    running_job.reset(reset)
    without, with_span = (json.loads(line) for line in stream.getvalue().splitlines())
    assert not {"trace_id", "span_id"} & without.keys()
    assert (with_span["trace_id"], with_span["span_id"]) == ("a" * 32, "b" * 16)


def test_the_error_of_a_command_is_json_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    assert main(["worker", "--app", "no_such_module", "--log-json"]) == USAGE
    (line,) = map(json.loads, stream.getvalue().splitlines())
    assert line["level"] == "error"
    assert "no_such_module" in line["message"]


def test_json_escapes_what_is_beyond_sixteen_bits(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"text": "\U000e0001 \x7f 中 😀"}
    Output(as_json=True).print_value(value, "")
    out = capsys.readouterr().out
    assert out == '{"text": "\\udb40\\udc01 \\u007f 中 😀"}\n'
    assert json.loads(out) == value


def test_nor_in_answers(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=False).print_value(None, "a\x1b[2J\nb")
    assert capsys.readouterr().out == "a\\x1b[2J\nb\n"
    Output(as_json=False).print_table(None, (), (), empty="none of \x1b[2J", last="last \x9b2J")
    assert capsys.readouterr().out == "none of \\x1b[2J\nlast \\x9b2J\n"


def test_nor_in_errors(capsys: pytest.CaptureFixture[str]) -> None:
    print_error_line("no such type: \x1b[2J\x85")
    assert capsys.readouterr().err == "toc: no such type: \\x1b[2J\n"
    print_error(ValueError("\x1b[2J"), verbose=True)
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize("as_json", [False, True])
def test_a_long_traceback_is_cut_and_masked(
    monkeypatch: pytest.MonkeyPatch, *, as_json: bool
) -> None:
    stream = start_logging(monkeypatch, as_json=as_json)
    begin = "a" * (SHOWN_CHARS_MAX // 2 - 200)
    text = f"{begin} mysql://u:{'secret' * 100}@host/toc {'x://a:b ' * 20_000} the end"
    try:
        raise ValueError(text)  # noqa: TRY301 - it has to be raised somewhere
    except ValueError:
        logging.getLogger("toc.test").exception("it fails")
    shown = stream.getvalue()
    assert len(shown) < SHOWN_CHARS_MAX + 500
    assert "Traceback" in shown
    assert "characters are left out" in shown
    assert "the end" in shown
    assert "secret" not in shown

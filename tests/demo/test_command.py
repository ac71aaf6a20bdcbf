"""The command around the demo: its exit code is the verdict."""

import pytest

from toc.cli.main import main
from toc.demo.view import BROKEN, HELD
from toc.testing.checker import check
from toc.testing.history import Entry, Row, Scheduled
from toc.testing.report import Report

SCHEDULED: Entry = Scheduled(1, "order.close", 1000, 9.0, 10.0)


@pytest.mark.parametrize(
    ("report", "code", "last"),
    [(check([]), 0, HELD), (check([[SCHEDULED, Row(1, "pending", 0, 1000)]]), 1, BROKEN)],
)
def test_a_broken_promise_is_an_exit_code(
    report: Report,
    code: int,
    last: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("toc.cli.demo.run_demo", lambda plan, look: report)
    assert main(["demo", "--orders", "3"]) == code
    assert capsys.readouterr().out.rstrip().splitlines()[-1] == last

"""The command around the demo: its exit code is the verdict."""

import pytest

from toc.cli.main import main
from toc.demo.audit import Verdict
from toc.demo.view import BROKEN, HELD


@pytest.mark.parametrize(
    ("verdict", "code", "last"),
    [
        (Verdict(scheduled=3), 0, HELD),
        (Verdict(lost=["job 1: was scheduled, and has no row"]), 1, BROKEN),
        (Verdict(early=["job 1"]), 1, BROKEN),
        (Verdict(after_cancel=["job 1"]), 1, BROKEN),
        (Verdict(duplicates=["job 1"]), 1, BROKEN),
        (Verdict(wrong=["job 1"] * 30), 1, BROKEN),
    ],
)
def test_a_broken_promise_is_an_exit_code(
    verdict: Verdict,
    code: int,
    last: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("toc.cli.demo.run", lambda plan, look: verdict)
    assert main(["demo", "--orders", "3"]) == code
    said = capsys.readouterr().out.rstrip().splitlines()
    assert said[-1] == last
    assert len([line for line in said if line.startswith("job 1")]) <= 20

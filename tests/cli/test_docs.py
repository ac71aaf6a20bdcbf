"""docs/reference/cli.md and the program agree on commands, options and exit codes."""

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Toc
from toc.cli import exit_codes

PAGE = (Path(__file__).parents[2] / "docs/reference/cli.md").read_text()
COMMON = {"--help", "--json", "--verbose", "--log-json"}
COMMANDS = ["dev", "web", "worker", "migrate", "schedule", "cancel", "reschedule", "countdown", "arrive",
            "pause", "resume", "pauses",
            "job show", "dead list", "dead redrive", "dead discard", "explain", "admin cancel",
            "admin postpone", "admin redrive", "admin discard", "sql",
            "reconcile", "spark pack", "types declare", "types list", "types show", "types set",
            "types apply", "types forget", "types key", "recurring add", "recurring list", "recurring next",
            "recurring run", "recurring pause", "recurring resume", "recurring remove",
            "recurring backfill", "archive show", "archive begin", "archive forget", "tables show",
            "tables backfill", "nightly", "purge", "grants",
            "webhooks add", "webhooks list", "webhooks rotate", "webhooks enable", "webhooks disable",
            "webhooks remove", "webhooks test", "webhooks key", "webhooks rekey",
            "alarms test", "sinks test", "debounce",
            "token create", "token list", "token revoke", "audit list", "slots", "nodes", "status", "doctor",
            "move", "settings", "version", "check"]  # fmt: skip


def test_the_page_names_every_command(toc: Toc) -> None:
    listed = re.search(r"Commands:\n(.*?)\n\n", toc("--help").out, re.DOTALL)
    assert listed
    names = {line.split()[0] for line in listed[1].splitlines() if re.match(r"  \w", line)}
    assert names == {name.split()[0] for name in COMMANDS} | {"demo", "bench"}
    assert [name for name in names if f"    toc {name}" not in PAGE] == []


@pytest.mark.parametrize(
    "group",
    [
        "",
        "job",
        "dead",
        "admin",
        "spark",
        "archive",
        "tables",
        "token",
        "audit",
        "types",
        "alarms",
        "recurring",
    ],
)
def test_the_list_of_commands_shows_each_on_one_whole_line(toc: Toc, group: str) -> None:
    listed = toc(*group.split(), "--help").out.partition("Commands:\n")[2].partition("\n\n")[0]
    assert listed
    assert [
        line for line in listed.splitlines() if not re.fullmatch(r"  \w+ +\S.*[^.]\.?", line)
    ] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_names_every_option(toc: Toc, command: str) -> None:
    options = set(
        re.findall(r"^  (?:-\w, )?(--[a-z-]+)", toc(*command.split(), "-h").out, re.MULTILINE)
    )
    used = "\n".join(line for line in PAGE.splitlines() if line.startswith(f"    toc {command}"))
    assert {option for option in options - COMMON if option not in used} == set()


def test_the_page_names_every_exit_code(toc: Toc) -> None:
    codes = {
        value for name, value in vars(exit_codes).items() if name.isupper() and type(value) is int
    }
    table = PAGE.partition("## Exit codes")[2].partition("##")[0]
    named = {
        int(code)
        for row in re.findall(r"^\| ([\d, ]+) \|", table, re.MULTILINE)
        for code in row.split(",")
    }
    assert codes == named - {143}  # by SIGTERM, of the shell
    shown = toc("--help").out.partition("Exit codes:")[2]
    assert {int(code) for code in re.findall(r"^ +(\d+)  ", shown, re.MULTILINE)} == named - {
        130,
        141,
        143,
    }

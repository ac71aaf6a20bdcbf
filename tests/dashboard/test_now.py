"""What the page Now tells to whom."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dashboard.site_world import Site, open_site, token_of
from tests.http.served_world import declare_type


@pytest.fixture(scope="module")
def paused(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Two types with limits and pauses, and a pause of a topic."""
    folder: Path = tmp_path_factory.mktemp("now")
    with open_site(folder) as made:
        for name in ("mail", "shop.close"):
            declare_type(made.settings, name, rate="5/s")
            made.center.pause(biz_type=name, reason=f"the secret of {name}", actor="ann")
        made.center.pause(topic="other", reason="the secret of a topic", actor="ann")
        yield made


def parts_of(site: Site, token: str) -> str:
    """The table of parts."""
    with site.visitor(token) as visitor:
        return visitor.get("/ui/").text.split('id="parts"')[1]


def test_who_may_pause_everything_sees_all_pauses_with_their_reasons(paused: Site) -> None:
    parts = parts_of(paused, token_of(paused))
    for target in ("type:mail", "type:shop.close", "topic:other"):
        assert f"{target} is paused until somebody resumes it, by ann" in parts
    assert "the secret of a topic" in parts


def test_an_operator_of_one_type_sees_its_pause_alone(paused: Site) -> None:
    token = token_of(paused, scopes=("read", "operate"), biz_types=("shop.*",))
    parts = parts_of(paused, token)
    assert "the secret of shop.close" in parts
    assert "mail" not in parts
    assert "topic:other" not in parts


def test_a_viewer_sees_pauses_without_who_and_why(paused: Site) -> None:
    for token in (
        token_of(paused, scopes=("read",)),
        token_of(paused, scopes=("read", "operate"), tenant="acme"),
    ):
        parts = parts_of(paused, token)
        assert "type:mail is paused" in parts
        assert "secret" not in parts
        assert "by ann" not in parts


def test_a_token_of_a_tenant_sees_no_use_of_limits(paused: Site) -> None:
    assert ">limits</th>" in parts_of(paused, token_of(paused, scopes=("read",)))
    assert ">limits</th>" not in parts_of(paused, token_of(paused, tenant="acme"))

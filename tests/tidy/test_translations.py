"""The Chinese pages have the headings, the code and the links of the English ones, and no stale section."""

from __future__ import annotations

import pytest

from tests.tidy.translations import ROOT, TRANSLATED, Section, sections_of, translation_of


@pytest.fixture(params=TRANSLATED)
def pairs(request: pytest.FixtureRequest) -> list[tuple[Section, Section]]:
    """The sections of an English page, each with that of the translation."""
    english, chinese = sections_of(ROOT / request.param), sections_of(translation_of(request.param))
    levels = [f"{'#' * section.level} {section.title}" for section in english]
    translated = [f"{'#' * section.level} {section.title}" for section in chinese]
    assert [section.level for section in english] == [section.level for section in chinese], (
        f"the headings differ:\n{levels}\n{translated}"
    )
    return list(zip(english, chinese, strict=True))


def test_the_code_is_the_same(pairs: list[tuple[Section, Section]]) -> None:
    for english, chinese in pairs:
        assert english.code == chinese.code, english.title


def test_the_links_lead_to_the_same_places(pairs: list[tuple[Section, Section]]) -> None:
    for english, chinese in pairs:
        assert english.links() == chinese.links(), english.title


def test_no_section_is_stale(pairs: list[tuple[Section, Section]]) -> None:
    stale = [english.title for english, chinese in pairs if chinese.hash != english.made_hash()]
    assert stale == [], "translate these sections, then: python -m tests.tidy.translations"

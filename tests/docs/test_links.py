"""Every link within the project leads to a file that is there, and every anchor to a heading of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, anchors, links, pages


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if link.startswith(("https://", "http://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} in {page}"
        assert target.is_relative_to(ROOT)
        assert not anchor or anchor in anchors(target), f"{link} in {page}"


def test_every_page_is_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    left = [ROOT / "README.md"]
    while left:
        page = left.pop()
        seen.add(page)
        targets = [(page.parent / link.partition("#")[0]).resolve() for link in links(page) if "://" not in link]
        left += [each for each in targets if each.suffix == ".md" and each not in seen and each.exists()]
    assert set(ROOT.glob("docs/*.md")) <= seen

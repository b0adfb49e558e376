"""The documentation site: its navigation has every page, and what pages link to is part of it.

`make docs-site` builds the site and fails on a link that leads nowhere; these tests need no site generator.
"""

from __future__ import annotations

import re
from pathlib import Path

from docs.build_site import LEFT_OUT, Entry, check, configuration, entries, navigation, nested, stage
from tests.docs.pages import DOCS, ROOT
from tests.docs.test_docs import LINK


def listed() -> list[str]:
    """The pages of the navigation, in their order."""
    return [page.page for _, section in entries() for page in section]


def test_every_page_is_in_the_navigation_or_left_out() -> None:
    pages = {page.relative_to(ROOT).as_posix() for page in DOCS.rglob("*.md")} - {"docs/README.md"}

    assert pages - LEFT_OUT.keys() <= set(listed())


def test_every_page_of_the_navigation_exists_and_is_there_once() -> None:
    assert [page for page in listed() if not (ROOT / page).is_file()] == []
    assert len(listed()) == len(set(listed()))
    assert not set(listed()) & LEFT_OUT.keys()


def test_the_navigation_begins_with_the_readme_and_keeps_the_sections_of_the_index() -> None:
    assert navigation()[:2] == [{"Home": "README.md"}, {"Documentation": "docs/README.md"}]
    assert [section for entry in navigation()[2:] for section in entry] == [section for section, _ in entries()]


def test_pages_below_a_page_become_a_section() -> None:
    pages = [Entry(0, "A", "a.md"), Entry(1, "B", "b.md"), Entry(2, "C", "c.md"), Entry(0, "D", "d.md")]

    assert nested(pages) == [
        {"A": [{"Overview": "a.md"}, {"B": [{"Overview": "b.md"}, {"C": "c.md"}]}]},
        {"D": "d.md"},
    ]


def test_the_configuration_loads_no_fonts_and_has_the_navigation() -> None:
    text = configuration([{"Home": "README.md"}])

    assert "font = false" in text
    assert 'nav = [{ Home = "README.md" }]' in text


def test_the_site_source_has_every_linked_page(tmp_path: Path) -> None:
    stage(tmp_path)

    lost = [
        f"{page.relative_to(tmp_path)}: {link}"
        for page in tmp_path.rglob("*.md")
        for link in LINK.findall(re.sub(r"`{3,}.*?`{3,}", "", page.read_text(encoding="utf-8"), flags=re.DOTALL))
        if not re.match(r"[a-z]+:|#", link) and not (page.parent / link.partition("#")[0]).is_file()
    ]
    assert lost == []
    assert (tmp_path / "CONTRIBUTING.md").is_file()
    assert (tmp_path / "bench" / "README.md").is_file()


def test_a_page_that_leads_nowhere_or_loads_from_another_host_is_found(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "index.html").write_text('<h2 id="here"></h2><script src="https://cdn.example/a.js"></script>')
    (tmp_path / "a.css").write_text("body { background: url(//cdn.example/a.png) }")
    (tmp_path / "index.html").write_text(
        '<a href="sub/#here">1</a><a href="sub/#gone">2</a><a href="gone/">3</a><a href="https://other.example/">4</a>'
        '<link rel="stylesheet" href="a.css">'
    )

    assert [*check(tmp_path)] == [
        "index.html: sub/#gone leads nowhere",
        "index.html: gone/ leads nowhere",
        "sub/index.html: loads https://cdn.example/a.js",
        "a.css: loads from another host",
    ]

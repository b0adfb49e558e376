"""The page about host mode contains the example of the repository."""

from tests.docs.pages import DOCS, ROOT, read


def test_the_page_has_the_current_example() -> None:
    (shown,) = [block for block in read(DOCS / "how-to" / "host-mode-and-comms.md").of("python") if block.title]

    assert shown.code + "\n" == (ROOT / "examples" / "host-mode" / shown.title).read_text()

"""The example that the page about host mode shows is the one in the repository."""

from tests.docs.pages import DOCS, ROOT, read


def test_the_page_shows_the_example_as_it_is() -> None:
    (shown,) = [block for block in read(DOCS / "how-to" / "host-mode-and-comms.md").of("python") if block.title]

    assert shown.code + "\n" == (ROOT / "examples" / "host-mode" / shown.title).read_text()

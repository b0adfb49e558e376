"""Sources of an answer, as the vendor's own tools name them: behind the answer, in the transcript and as JSON."""

from __future__ import annotations

import pytest

from retinue.testing.fake_server import FakeServer
from tests.cli.conftest import Cli
from tests.cli.stage import open_in_a_thread
from tests.providers.test_server_tools import URL, searching

pytestmark = pytest.mark.real_time

SOURCE = f"[1] Pools <{URL}>"


def test_sources_are_behind_the_answer_and_in_the_transcript(cli: Cli) -> None:
    with open_in_a_thread(FakeServer(searching())) as server:
        where = ("--provider", "anthropic", "--base-url", server.url, "--model", "m", "--dialect", "none")
        ended = cli("run", *where, "--tools", "server:web_search", "How large is the pool?")
        shown = cli("runs", "show", cli("runs", "--json").json[0]["run_id"])

    assert ended.stdout == "It is Ten.\n"
    assert ended.stderr.splitlines()[-2:] == ["sources:", SOURCE]
    assert "server:web_search was used 2 times" in shown.stdout
    assert SOURCE in shown.stdout

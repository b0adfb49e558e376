"""A chat in a pipe with a fake vendor."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from retinue.providers.scripted import says
from retinue.testing.fake_chat import ChatScript, FakeChat, Playable
from tests.cli.conftest import Cli
from tests.cli.stage import Ended, serving


class Chat:
    """A chat with a fake vendor: sends lines, and records the requests."""

    def __init__(self, cli: Cli, vendor: FakeChat) -> None:
        self._cli = cli
        self.vendor = vendor

    def __call__(self, *lines: str, flags: tuple[str, ...] = ()) -> Ended:
        stdin = "".join(f"{line}\n" for line in lines).encode()
        return self._cli("chat", "--base-url", self.vendor.base_url, "--model", "m", *flags, stdin=stdin)

    @property
    def sent(self) -> list[list[tuple[str, str]]]:
        """The messages of each request."""
        return [[(each["role"], each["content"]) for each in heard.body["messages"]] for heard in self.vendor.requests]

    @property
    def offered(self) -> list[list[str]]:
        """The tools of each request."""
        return [[tool["function"]["name"] for tool in heard.body.get("tools", ())] for heard in self.vendor.requests]


Opens = Callable[..., Chat]


@pytest.fixture
def chat(cli: Cli, request: pytest.FixtureRequest) -> Opens:
    def opened(*lines: Playable, **engine: Playable) -> Chat:
        script = ChatScript().play(*lines)
        for words, line in engine.items():
            script.play(line, says("summed up"), words=words)
        serving_it = serving(script)
        vendor = serving_it.__enter__()
        request.addfinalizer(lambda: serving_it.__exit__(None, None, None))
        return Chat(cli, vendor)

    return opened

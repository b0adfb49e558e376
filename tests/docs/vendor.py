"""Fake models for the examples of the documentation, with an answer to each prompt of the pages."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from retinue.providers.catalog import LOCAL_SERVERS, WIRES
from retinue.providers.scripted import Line, calls, hangs, says
from retinue.providers.wire import Wire
from retinue.testing.fake_chat import FakeChat, count_replies
from retinue.testing.fake_server import FakeResponse, FakeServer, ReceivedRequest
from tests.providers.fakes.anthropic import FakeAnthropic
from tests.providers.fakes.bedrock import FakeBedrock
from tests.providers.fakes.gemini import FakeGemini
from tests.providers.fakes.responses import FakeResponses

ADDRESS = "http://localhost:8000/v1"
"""The address of a model in pages; the examples run with the address of the fake."""

AZURE = "https://my-resource.openai.azure.com/openai/v1"
"""The address of Azure in pages."""

GOOGLE_GEMINI = "https://europe-west4-aiplatform.googleapis.com/v1/projects/my-project/locations/europe-west4"
"""The address of Gemini at Google Cloud in pages."""

GOOGLE = "https://europe-west1-aiplatform.googleapis.com/v1/projects/my-project/locations/europe-west1"
"""The address of Google's API in pages."""


USUAL = dict(WIRES)
"""The default addresses of vendors."""


class FakeVendors(FakeServer):
    """The vendors of all pages, each below a path of its own, so that a request shows which one was called.

    `addresses` maps each address in pages to the address of its fake.
    """

    def __init__(self, mark: Path) -> None:
        super().__init__(self._response)
        self._chat = FakeChat(Vendor(mark))
        self._vendors: dict[str, FakeResponses | FakeAnthropic | FakeGemini | FakeBedrock] = {
            "openai": FakeResponses(_one_answer),
            "openai-responses": FakeResponses(_one_answer),
            "anthropic": FakeAnthropic(_one_answer),
            "vertexai-anthropic": FakeAnthropic(_one_answer),
            "gemini": FakeGemini(_one_answer),
            "vertexai-gemini": FakeGemini(_one_answer),
            "bedrock": FakeBedrock(_one_answer),
        }

    @property
    def addresses(self) -> Mapping[str, str]:
        """The addresses in pages with those of the fakes."""
        return {
            ADDRESS: f"{self.url}/any/v1",
            AZURE: f"{self.url}/azure/openai/v1",
            GOOGLE: f"{self.url}/vertexai-anthropic/v1/projects/p/locations/l",
            GOOGLE_GEMINI: f"{self.url}/vertexai-gemini/v1/projects/p/locations/l",
        }

    def wires(self) -> dict[str, Wire]:
        """The table of wires, with the addresses of these vendors in place of the usual ones."""
        return {
            name: msgspec.structs.replace(
                wire, base_url=f"{self.url}/{name}{'/v1' if wire.base_url.endswith('/v1') else ''}"
            )
            for name, wire in USUAL.items()
            if wire.base_url
        }

    def as_the_page_has_it(self, text: str) -> str:
        """The output with the addresses of the pages."""
        places = {there: page for page, there in self.addresses.items()}
        places |= {wire.base_url: USUAL[name].base_url for name, wire in self.wires().items()}
        for there, page in sorted(places.items(), key=lambda place: -len(place[0])):
            text = text.replace(there, page)
        return text

    def _response(self, heard: ReceivedRequest) -> FakeResponse:
        _, name, rest = heard.path.split("/", 2)
        heard = replace(heard, path=f"/{rest}")
        if name in LOCAL_SERVERS and heard.method == "GET":
            return FakeResponse(pieces=(b'{"data":[{"id":"qwen3"}]}',))
        return self._vendors.get(name, self._chat)._response(heard)


def _one_answer(heard: ReceivedRequest) -> Line:
    return says('{"capital": "Paris", "country": "France"}' if b"capital of France" in heard.raw else "42")


class Vendor:
    """Answers by prompt; it hangs once in the story of the night, and creates a file that tests wait for."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __call__(self, heard: ReceivedRequest) -> Line:
        """The next line of the script."""
        messages: list[dict[str, Any]] = heard.body["messages"]
        said = "\n".join(str(message["content"]) for message in messages if message["role"] in ("system", "user"))
        results = [str(message["content"]) for message in messages if message["role"] == "tool"]
        if "You find causes." in said:
            return _researcher(count_replies(heard))
        if "checkout slow at night" in said and count_replies(heard) == 3 and not self._mark.exists():
            self._mark.touch()
            return hangs()
        if "checkout slow" in said:
            return _lead(results)
        if "capital of France" in said:
            return says('{"capital": "Paris", "country": "France"}')
        if "endless story" in said:
            return hangs()
        if "slow story" in said and not self._mark.exists():
            self._mark.touch()
            return hangs()
        return says("42")


def _lead(results: list[str]) -> Line:
    match results:
        case []:
            return calls("shared_context", action="write", key="problem_summary", value="Checkout is slow.")
        case [_]:
            return calls("subagent", action="spawn", agent="researcher", task="Find the cause of problem_summary.")
        case [_, _]:
            return calls("read_dashboard", service="checkout")
        case [*_, last] if len(results) == 3 or "TASK_NOT_READY" in last:
            return calls("subagent", action="collect", task_id="t_01")
        case _:
            return says("The pool has 20 connections, and all of them are in use.")


def _researcher(turn: int) -> Line:
    return (
        calls("shared_context", action="read", key="problem_summary"),
        calls("shared_context", action="write", key="findings_summary", value="The pool is used up."),
        says("The pool is used up. Details are in findings_summary."),
    )[turn]

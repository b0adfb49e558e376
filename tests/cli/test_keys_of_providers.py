"""A key goes to its provider's host and nowhere else: not along a redirect, not into a file, a log, an event, an error.

On every wire, vendors echo the key in every possible way, with all logging turned on. Then every stored and printed
byte is searched.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
import pytest

import retinue
from retinue.app.launch.model_choice import choose_model
from retinue.app.settings_file import load_settings
from retinue.config.precedence import Flags
from retinue.core.errors import BadInput
from retinue.providers.scripted import Line, calls, calls_verbatim, says, streams
from retinue.testing.fake_chat import EVENTS, JSON, FakeChat, Playable
from retinue.testing.fake_server import FakeResponse, FakeServer, ReceivedRequest
from tests.cli.conftest import Cli
from tests.cli.stage import Ended, open_in_a_thread
from tests.internals import tune
from tests.providers.fakes.anthropic import FakeAnthropic
from tests.providers.fakes.gemini import FakeGemini
from tests.providers.fakes.responses import FakeResponses

KEY = "hush-7f3a9c51e2d84b60-quiet"
TOKEN = "silent/0b1c2d3e4f5a6978+whisper="
PASSWORD = "bXVtOmlzLXRoZS13b3Jk"
SECRETS = tuple(secret.encode() for whole in (KEY, TOKEN, PASSWORD) for secret in (whole, whole[:12], whole[-12:]))
"""Also their beginnings and ends: half a key is too much."""

AnyVendor = FakeChat | FakeResponses | FakeAnthropic | FakeGemini


class Wire(NamedTuple):
    """A wire, its fake vendor, and the header of the key."""

    name: str
    vendor: Callable[[Playable], AnyVendor]
    key_header: str = "authorization"
    key: str = f"Bearer {KEY}"
    address: str = "base_url"


WIRES = [
    Wire("openai-chat", FakeChat),
    Wire("openai-responses", FakeResponses),
    Wire("anthropic", FakeAnthropic, "x-api-key", KEY),
    Wire("vertexai-anthropic", FakeAnthropic, address="google_url"),
    Wire("gemini", FakeGemini, "x-goog-api-key", KEY),
]
GOOGLE = "https://us-east5-aiplatform.googleapis.com/v1/projects/p/locations/us-east5"
ECHO = f"the key {KEY} with token {TOKEN} and password {PASSWORD} is wrong"


def refused(status: int, **headers: str) -> FakeResponse:
    """An error that repeats the request in its body and headers."""
    body = msgspec.json.encode({"error": {"message": ECHO, "type": KEY, "code": TOKEN, "details": [KEY]}})
    return FakeResponse(status=status, headers=JSON | {"x-echo": KEY} | headers, pieces=(body,))


def nonsense(at: int) -> FakeResponse:
    """A stream whose only event is not JSON, with the key at this byte."""
    return FakeResponse(headers=EVENTS, pieces=(b"data: {" + b"." * at + KEY.encode() + b"\n\n",))


def unkind(elsewhere: str) -> Iterator[tuple[str, FakeResponse]]:
    """Responses of vendors, each with the expected error."""
    for status in (400, 401, 403, 404, 422):
        yield str(status), refused(status)
    yield "429", refused(429, **{"Retry-After": "0"})
    yield "400", FakeResponse(status=400, pieces=(f"<html>{ECHO}</html>".encode(),))
    for status in (301, 302, 303, 307, 308):
        moved = {"Location": f"{elsewhere}/v1?key={KEY}&token={TOKEN}"}
        yield f"{elsewhere}/v1; redirects are not followed", FakeResponse(status=status, headers=moved)
    yield "[key]", FakeResponse(headers=EVENTS, pieces=(b"data: " + msgspec.json.encode({"error": ECHO}) + b"\n\n",))
    for at in (10, 95, 105):
        yield "cannot be read", nonsense(at)
    yield (
        "is not an event stream",
        FakeResponse(headers={"Content-Type": "text/html"}, pieces=(b"<p>" * 61 + KEY.encode(),)),
    )
    yield "[key]", FakeResponse(headers=JSON, pieces=(msgspec.json.encode({"error": {"message": ECHO}}),))


def is_bearer(heard: ReceivedRequest, wire: Wire) -> bool:
    own = {wire.key_header: wire.key, "x-house-token": TOKEN, "x-house": f"Basic {PASSWORD}"}
    return {name: heard.headers[name] for name in own} == own


class House:
    """A state folder, a working folder and the output of all commands."""

    def __init__(self, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._cli = cli
        self._tmp_path = tmp_path
        self.said: list[Ended] = []
        (tmp_path / "user").mkdir()
        tune(monkeypatch, first_pause=0.001)  # a broken stream is requested four times
        for name, value in {
            "HOME": str(tmp_path / "user"),
            "HOUSE_KEY": KEY,
            "RETINUE_LOG": "debug",
            "RETINUE_LOG_PAYLOADS": "1",
        }.items():
            monkeypatch.setenv(name, value)

    def settle(self, wire: Wire, base_url: str) -> None:
        """Write the settings; the token in them is the user's own."""
        settings = (
            f'[providers.house]\nwire = "{wire.name}"\nbase_url = "{base_url}"\napi_key_env = "HOUSE_KEY"\n'
            f'headers = {{ "X-House-Token" = "{TOKEN}", "X-House" = "Basic {PASSWORD}" }}\n'
        )
        Path("retinue.toml").write_text(settings)

    def retinue(self, *arguments: str) -> Ended:
        """Run a command."""
        self.said.append(self._cli(*arguments))
        return self.said[-1]

    def rows(self) -> list[dict[str, Any]]:
        """All runs."""
        return self.retinue("runs", "--all", "--json").json

    def look_around(self) -> None:
        """Run every command that prints stored data."""
        self.retinue("runs")
        for row in self.rows():
            self.retinue("runs", "show", row["run_id"])
            self.retinue("runs", "show", row["run_id"], "--json")

    def places_of_secrets(self) -> list[str]:
        """Places with a key, a token or half of one."""
        found = [
            str(path.relative_to(self._tmp_path))
            for path in sorted(self._tmp_path.rglob("*"))
            if path.is_file() and path.name != "retinue.toml" and _is_told(path.read_bytes())
        ]
        return found + [f"{what}: {text}" for ended in self.said for what, text in _words(ended) if _is_told(text)]


def _words(ended: Ended) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("stdout", ended.stdout), ("stderr", ended.stderr)


def _is_told(text: str | bytes) -> bool:
    return any(secret in (text if isinstance(text, bytes) else text.encode()) for secret in SECRETS)


@pytest.fixture
def house(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    return House(cli, tmp_path, monkeypatch)


def asking(*flags: str) -> tuple[str, ...]:
    return ("run", "--model", "house:fake-1", "-v", *flags, "Look.")


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_a_key_is_sent_to_its_provider_and_stored_nowhere(house: House, wire: Wire) -> None:
    lines = iter([calls("shared_context", action="list_keys"), says("Nothing there.")] * 3)
    with open_in_a_thread(wire.vendor(lambda _: next(lines))) as vendor:
        house.settle(wire, getattr(vendor, wire.address))
        codes = [house.retinue(*asking(*flags)).code for flags in ((), ("--json",), ("--sse",))]
        assert (codes, len(vendor.requests)) == ([0, 0, 0], 6)
        assert all(is_bearer(heard, wire) for heard in vendor.requests)
    house.look_around()
    house.retinue("doctor")

    assert len(house.rows()) == 3
    assert house.places_of_secrets() == []


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_a_vendor_that_echoes_the_key_or_redirects_does_not_leak_it(house: House, wire: Wire) -> None:
    forms = cycle([("--json",), ("--sse",), ()])
    with open_in_a_thread(FakeServer(lambda _: FakeResponse(pieces=(b"stolen",)))) as thief:
        for words, answer in unkind(thief.url):
            with open_in_a_thread(wire.vendor(answer)) as vendor:
                house.settle(wire, getattr(vendor, wire.address))
                ended = house.retinue(*asking(*next(forms), "--dialect", "none"))
                assert (ended.code, words in ended.stderr) == (1, True), (words, ended)
                assert vendor.requests
                assert all(is_bearer(heard, wire) for heard in vendor.requests)
        assert thief.requests == []
    house.look_around()

    assert house.places_of_secrets() == []


def in_pieces(*secrets: str) -> Line:
    """An answer with these secrets, in pieces of three characters."""
    text = " and ".join(secrets)
    return streams(*(text[at : at + 3] for at in range(0, len(text), 3)))


ECHOES: list[Line] = [
    calls(KEY, words="a"),
    calls("shared_context", action=f"list_{KEY}", **{TOKEN: [PASSWORD]}),
    calls_verbatim("shared_context", json.dumps({"action": KEY}).replace("hush", "h\\u0075sh")),
    says(f"It is {KEY}, {TOKEN} and {PASSWORD}.", thinking=f"The key {KEY}, {TOKEN} and {PASSWORD}"),
]
"""Replies that repeat the secrets; the last one is an answer."""


@pytest.mark.parametrize("answer", [ECHOES[-1], in_pieces(KEY, TOKEN, PASSWORD)], ids=["whole", "in pieces"])
@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_a_key_in_an_answer_is_neither_printed_nor_stored(house: House, wire: Wire, answer: Line) -> None:
    lines = cycle([*ECHOES[:-1], answer])
    with open_in_a_thread(wire.vendor(lambda _: next(lines))) as vendor:
        house.settle(wire, getattr(vendor, wire.address))
        ended = [house.retinue(*asking(*flags)) for flags in ((), ("--json",), ("--sse",))]
    house.look_around()

    assert [each.code for each in ended] == [0, 0, 0]
    assert "[key]" in ended[0].stdout
    assert ended[1].json["text"].count("[key]") == 3
    assert house.places_of_secrets() == []


def test_a_key_in_the_ids_and_the_model_of_a_response_is_not_stored(house: House) -> None:
    chunk: dict[str, Any] = {"id": f"resp-{KEY}", "model": KEY, "object": "chat.completion.chunk"}
    call = {"index": 0, "id": KEY, "function": {"name": KEY, "arguments": "{}"}}
    first = chunk | {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}
    last = chunk | {"choices": [{"index": 0, "delta": {"content": "Done."}, "finish_reason": "stop"}]}
    answers = iter([first, last])

    def answer(_: object) -> FakeResponse:
        data = b"data: " + msgspec.json.encode(next(answers)) + b"\n\ndata: [DONE]\n\n"
        return FakeResponse(headers=EVENTS, pieces=(data,))

    with open_in_a_thread(FakeChat(answer)) as vendor:
        house.settle(WIRES[0], vendor.base_url)
        ended = house.retinue(*asking("--sse"))
    house.look_around()

    assert ended.code == 0
    assert house.places_of_secrets() == []


FORMS: dict[str, Callable[[str], str]] = {
    "the end": lambda key: key[-16:],
    "URL-encoded": lambda key: quote(key, safe=""),
    "base64": lambda key: b64encode(key.encode()).decode(),
    "base64 of a header": lambda key: b64encode(f"user:{key}".encode()).decode(),
    "upper case": str.upper,
    "hex": lambda key: key.encode().hex(),
}


@pytest.mark.parametrize("form", FORMS)
def test_other_forms_of_a_key_in_an_error_are_replaced(house: House, form: str) -> None:
    written = [FORMS[form](secret) for secret in (KEY, TOKEN)]
    body = msgspec.json.encode({"error": {"message": f"wrong: {' and '.join(written)}", "type": "auth"}})
    with open_in_a_thread(FakeChat(FakeResponse(status=401, headers=JSON, pieces=(body,)))) as vendor:
        house.settle(WIRES[0], vendor.base_url)
        ended = house.retinue(*asking("--dialect", "none"))
    house.look_around()

    assert (ended.code, ended.stderr.count("[key]") >= 2) == (1, True)
    printed = "".join(each.stdout + each.stderr for each in house.said)
    assert [text for text in written if text[4:-4] in printed] == []
    assert house.places_of_secrets() == []


# ---- where a key goes ------------------------------------------------------------------------------------------------

ELSEWHERE = "https://models.example/v1"
BOTH = f'[providers.mine]\nwire = "openai-chat"\nbase_url = "{ELSEWHERE}"\napi_key_env = "OPENAI_API_KEY"\n'


@pytest.mark.parametrize(
    ("settings", "flags"),
    [
        ("", ("--base-url", ELSEWHERE, "--api-key-env", "OPENAI_API_KEY")),
        ("", ("--base-url", ELSEWHERE, "--api-key-env", "HOUSE_KEY")),
        ("", ("--provider", "anthropic", "--base-url", ELSEWHERE, "--api-key-env", "ANTHROPIC_API_KEY")),
        ("", ("--provider", "openai-chat", "--api-key-env", "ANTHROPIC_API_KEY")),
        (BOTH, ("--provider", "mine", "--api-key-env", "HOUSE_KEY")),
        (BOTH, ("--provider", "mine", "--base-url", "https://other.example", "--api-key-env", "OPENAI_API_KEY")),
        (BOTH.replace('api_key_env = "OPENAI_API_KEY"', ""), ("--provider", "mine", "--api-key-env", "OPENAI_API_KEY")),
    ],
)
def test_a_key_and_another_address_have_to_be_in_one_section_of_the_settings(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, settings: str, flags: tuple[str, ...]
) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "HOUSE_KEY"):
        monkeypatch.setenv(name, KEY)
    Path("retinue.toml").write_text(settings)

    ended = cli("run", "--model", "m", *flags, "Look.")

    assert (ended.code, ended.stdout) == (2, "")
    assert "the settings have to name both. Write a section [providers.NAME] with wire = " in ended.stderr


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (Flags(provider="mine", model="m"), ("https://models.example/v1", "OPENAI_API_KEY")),
        (Flags(base_url=ELSEWHERE, model="m"), (ELSEWHERE, "")),
        (Flags(base_url=ELSEWHERE, api_key_env="OPENAI_API_KEY", model="m"), (ELSEWHERE, "OPENAI_API_KEY")),
        (Flags(provider="openai", model="m"), ("https://api.openai.com/v1", "OPENAI_API_KEY")),
        (Flags(provider="openai", api_key_env="HOUSE_KEY", model="m"), ("https://api.openai.com/v1", "HOUSE_KEY")),
        (
            Flags(base_url="https://eu.api.openai.com/v1", api_key_env="OPENAI_API_KEY", model="m"),
            ("https://eu.api.openai.com/v1", "OPENAI_API_KEY"),
        ),
        (
            Flags(base_url="https://openrouter.ai/api/v1", api_key_env="OPENROUTER_API_KEY", model="m"),
            ("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
        ),
        (
            Flags(provider="vertexai-anthropic", base_url=GOOGLE, api_key_env="GOOGLE_ACCESS_TOKEN", model="m"),
            (GOOGLE, "GOOGLE_ACCESS_TOKEN"),
        ),
        (
            Flags(base_url="http://127.0.0.1:9/v1", api_key_env="OPENAI_API_KEY", model="m"),
            ("http://127.0.0.1:9/v1", "OPENAI_API_KEY"),
        ),
    ],
)
async def test_a_key_goes_to_its_vendor_to_this_machine_and_where_the_settings_say(
    folder: Path, flags: Flags, found: tuple[str, str]
) -> None:
    (folder / "retinue.toml").write_text(BOTH)
    names = ("OPENAI_API_KEY", "HOUSE_KEY", "OPENROUTER_API_KEY", "GOOGLE_ACCESS_TOKEN")

    choice = await choose_model(flags, load_settings(), environ=dict.fromkeys(names, KEY))

    assert (choice.provider_config.base_url, choice.provider_config.api_key_env) == found


PLAIN = BOTH.replace("https", "http")


def test_a_key_is_sent_to_another_machine_over_https_only(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    Path("retinue.toml").write_text(PLAIN)
    refused_run = cli("run", "--model", "mine:m", "Look.")
    Path("retinue.toml").write_text(
        PLAIN.replace('api_key_env = "OPENAI_API_KEY"', 'headers = { "Authorization" = "Bearer abc" }')
    )
    refused_header = cli("run", "--model", "mine:m", "Look.")

    assert (refused_run.code, refused_header.code) == (2, 2)
    assert "the key in OPENAI_API_KEY is not sent to models.example over plain http" in refused_run.stderr
    assert "the header Authorization is not sent to models.example over plain http" in refused_header.stderr
    with pytest.raises(BadInput, match="over plain http"):
        retinue.open(model="openai-chat:m", base_url="http://models.example/v1", api_key_env="OPENAI_API_KEY")


@pytest.mark.parametrize(
    ("settings", "url", "words"),
    [
        ("", f"{ELSEWHERE}/chat/completions", "the settings have to name both"),
        ("", "http://models.example/v1", "over plain http"),
        (PLAIN, "http://models.example/v1", "over plain http"),
    ],
)
def test_orders_of_call_and_buzz_obey_the_same(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, settings: str, url: str, words: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    Path("retinue.toml").write_text(settings)
    order = {"model": "m", "provider": "openai-chat", "url": url, "prompt": "Hi", "api_key_name": "OPENAI_API_KEY"}

    called = cli("call", stdin=json.dumps(order).encode())
    buzz = cli("buzz", "m", url, "Hi", "--provider", "openai-chat", "--api-key-name", "OPENAI_API_KEY")

    assert (called.code, buzz.code) == (1, 2)
    assert words in called.stderr
    assert words in buzz.stderr


@pytest.mark.parametrize("answer", [says("Nothing there."), refused(401)], ids=["answered", "refused"])
def test_a_background_run_stores_the_key_nowhere(house: House, answer: Playable) -> None:
    with open_in_a_thread(FakeChat(answer)) as vendor:
        house.settle(WIRES[0], vendor.base_url)
        command = [sys.executable, "-m", "retinue", *asking("--detach")]
        ended = subprocess.run(command, check=True, capture_output=True, text=True)
        house.said.append(Ended(ended.returncode, ended.stdout, ended.stderr))
        until = time.monotonic() + 20
        while any(row["state"] != "ended" for row in house.rows()):
            assert time.monotonic() < until
            time.sleep(0.02)
    house.look_around()

    assert vendor.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert house.places_of_secrets() == []


@pytest.mark.parametrize("place", ["http://user:{}@127.0.0.1:9/v1", "http://127.0.0.1:9/v1?api_key={}"])
@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_a_key_inside_an_address_is_refused_without_repeating_it(house: House, wire: Wire, place: str) -> None:
    flags = ("--provider", wire.name, "--base-url", place.format(KEY), "--model", "fake-1")

    ended = house.retinue("run", *flags, "-v", "Look.")

    assert (ended.code, ended.stdout, "has a secret in it" in ended.stderr) == (2, "", True)
    assert house.places_of_secrets() == []


def test_the_search_finds_a_leaked_key(house: House, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir(exist_ok=True)
    (tmp_path / "home" / "left").write_text(f"... {KEY[:12]}")
    house.said.append(Ended(0, "", f"token {TOKEN}"))

    assert house.places_of_secrets() == ["home/left", f"stderr: token {TOKEN}"]

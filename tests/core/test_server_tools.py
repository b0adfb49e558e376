"""Specs of server tools: which values are refused, and what the rest of the program reads from them."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.core.errors import BadInput, ProviderError
from retinue.core.server_tools import MAX_ENTRIES, ServerToolSpec, secrets_of

DOCS: dict[str, Any] = {"name": "docs", "url": "https://docs.example/mcp"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "web_serch"}, "expected one of web_search, web_fetch"),
        ({"name": "web_search", "allowed_domains": "docs.example"}, "allowed_domains: expected a list of at most 100"),
        ({"name": "web_search", "allowed_domains": ["a b"]}, "allowed_domains: expected a list of at most 100"),
        ({"name": "web_search", "blocked_domains": ["x"] * (MAX_ENTRIES + 1)}, "blocked_domains: expected a list"),
        ({"name": "web_search", "max_uses": 0}, "max_uses: found 0; expected 1 to 1000"),
        ({"name": "web_search", "price": -1.0}, "price: found -1; expected dollars from 0 to 1000"),
        ({"name": "web_search", "stores": ["vs_1"]}, "stores applies to file_search only"),
        ({"name": "web_search", "token_env": "TOKEN"}, "token_env applies to mcp only"),
        ({"name": "web_search", "allowed_domains": ["a"], "blocked_domains": ["b"]}, "exclude each other"),
        (DOCS | {"name": "web_search"}, "an MCP server needs a name of its own"),
        (DOCS | {"name": "two words"}, "an MCP server needs a name of its own"),
        (DOCS | {"url": "http://docs.example/mcp"}, "url: expected an address that begins with https://"),
        (DOCS | {"url": "https://me:secret@docs.example"}, "url: expected an address that begins with https://"),
        (DOCS | {"url": "https://[::1"}, "url: expected an address that begins with https://"),
        (DOCS | {"token_env": "sk-123"}, "token_env: expected the name of an environment variable"),
    ],
)
def test_a_spec_that_no_wire_can_send_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as refused:
        ServerToolSpec(**fields)

    assert message in str(refused.value)
    assert "secret" not in str(refused.value).replace("no secret in it", "")


def test_a_spec_has_a_kind_a_name_for_agents_and_the_options_that_are_set() -> None:
    search = ServerToolSpec(name="web_search", max_uses=3, allowed_domains=("docs.example",), price=0.01)
    docs = ServerToolSpec(**DOCS, allow=("read",))

    assert (search.kind, search.full_name, search.options) == (
        "web_search",
        "server:web_search",
        ("max_uses", "allowed_domains"),
    )
    assert (docs.kind, docs.full_name, docs.options) == ("mcp", "server:docs", ("allow",))
    assert (search.price_nano, docs.price_nano) == (10_000_000, None)


def test_a_token_is_read_from_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    docs = ServerToolSpec(**DOCS, token_env="DOCS_TOKEN")
    monkeypatch.setenv("DOCS_TOKEN", " t-1 ")

    assert (docs.token({"DOCS_TOKEN": " t-2\n"}), ServerToolSpec(**DOCS).token({})) == ("t-2", "")
    assert secrets_of([docs, ServerToolSpec(**DOCS)]) == ("t-1",)
    for value in ("", "not\x07printable", "é"):
        with pytest.raises(ProviderError, match="the environment variable DOCS_TOKEN has no token"):
            docs.token({"DOCS_TOKEN": value})

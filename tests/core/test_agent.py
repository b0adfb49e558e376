"""The name of a model, with the provider in front of it or without."""

import pytest

from retinue.core.agent import split_model


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("local:qwen3", ("local", "qwen3")),
        ("local:qwen3:8b", ("local", "qwen3:8b")),
        ("local:", ("local", "")),
        ("qwen3:8b", (None, "qwen3:8b")),
        ("qwen3", (None, "qwen3")),
        ("local", (None, "local")),
        (":qwen3", (None, ":qwen3")),
        ("", (None, "")),
    ],
)
def test_the_text_before_the_colon_is_a_provider_if_there_is_one_of_that_name(
    model: str, expected: tuple[str | None, str]
) -> None:
    assert split_model(model, ("local", "anthropic")) == expected


def test_the_provider_may_be_written_in_another_way() -> None:
    aliases = {"Claude": "anthropic"}

    def canonical(name: str) -> str:
        return aliases.get(name, name)

    assert split_model("Claude:sonnet", ("anthropic",), canonical) == ("anthropic", "sonnet")
    assert split_model("Gpt:four", ("anthropic",), canonical) == (None, "Gpt:four")


def test_every_provider_is_taken_where_none_are_known() -> None:
    assert split_model("mine:small") == ("mine", "small")
    assert split_model("small") == (None, "small")

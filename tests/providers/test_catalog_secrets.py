"""A key inside an address is rejected, because addresses are printed and stored."""

import pytest

import retinue
from retinue.core.errors import BadInput
from retinue.providers.catalog import provider_config


@pytest.mark.parametrize(
    "address",
    [
        "http://user:hush@localhost:9/v1",
        "http://localhost:9/v1?api-key=hush",
        "https://host/v1?version=1&access_token=hush",
    ],
)
def test_an_address_with_a_secret_is_rejected_without_repeating_it(address: str) -> None:
    with pytest.raises(BadInput, match="has a secret in it") as refusal:
        provider_config("openai-chat", base_url=address)

    assert "hush" not in str(refusal.value)


def test_an_address_may_have_other_query_parameters() -> None:
    assert provider_config("openai-chat", base_url="http://localhost:9/v1?api-version=3").base_url.endswith(
        "?api-version=3"
    )


def test_a_key_given_as_api_key_env_is_rejected_without_repeating_it() -> None:
    with pytest.raises(BadInput) as refusal:
        retinue.open(model="openai-chat:m", api_key_env="sk-1234567890", home=retinue.MEMORY)

    assert str(refusal.value) == (
        "api_key_env: found a string of 13 characters; expected the name of an environment variable, never a key itself"
    )

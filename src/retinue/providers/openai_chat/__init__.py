"""The OpenAI Chat Completions API, which most vendors and nearly all local model servers speak too."""

from typing import TYPE_CHECKING

from msgspec.structs import replace

from retinue.providers.wire import Wire, lazy_exports

if TYPE_CHECKING:
    from retinue.providers.openai_chat.response import OpenAIChatProvider as OpenAIChatProvider

__all__ = ["WIRE", "OpenAIChatProvider", "local_server"]

__getattr__ = lazy_exports(__name__, OpenAIChatProvider="response")

COMPLETIONS_PATH = "/chat/completions"

WIRE = Wire(
    provider="retinue.providers.openai_chat.response:OpenAIChatProvider",
    family="openai",
    base_url="https://api.openai.com/v1",
    api_key_env="OPENAI_API_KEY",
    call_name="openai-chat",
    request_path=COMPLETIONS_PATH,
    explicit_options={"explicit": True},
)


def local_server(base_url: str) -> Wire:
    """The record of a model server that listens at `base_url` by default and needs no key."""
    return replace(WIRE, kind="local", base_url=base_url, api_key_env="")

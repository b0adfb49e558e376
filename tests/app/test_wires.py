"""Providers by name: what people call them, where they are, and what they cost."""

import msgspec
import pytest

from retinue.app.compose import open as open_retinue
from retinue.app.setup import Setup
from retinue.app.tables import ProviderTable
from retinue.app.wires import ALIASES, WIRES, Contact, called, contact, reach, tariff
from retinue.core.errors import UnknownName
from retinue.core.messages import Reply, UserMessage
from retinue.core.ports import Request
from retinue.core.usage import Usage
from retinue.providers.pricing import Rates
from retinue.providers.scripted import says
from retinue.testing.contracts.provider import Listener
from retinue.testing.fake_anthropic import FakeAnthropic
from retinue.testing.fake_chat import FakeChat


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("anthropic", "anthropic"), ("Claude", "anthropic"), ("CLAUDE", "anthropic"),
        ("openai", "openai"), ("gpt", "openai"), ("ChatGPT", "openai"), ("OpenAI-Chat", "openai-chat"),
        ("gemini", "gemini"), ("Google", "gemini"),
    ],
)  # fmt: skip
def test_a_vendor_is_known_by_what_people_call_it(name: str, wire: str) -> None:
    reached = contact(name)

    assert (reached.name, reached.wire, reached.api_key_env) == (wire, wire, WIRES[wire].api_key_env)
    assert ProviderTable({}, [contact("ollama")]).split(f"{name}:m", "ollama") == (wire, "m")
    assert ProviderTable({}).find(name) is not None


def test_openai_means_responses() -> None:
    assert repr(reach(contact("gpt"))) == "<OpenAIResponsesProvider https://api.openai.com/v1>"


def test_a_name_of_ones_own_goes_before_what_others_mean_by_it() -> None:
    own = Contact(name="claude", wire="openai-chat", base_url="http://mine/v1")
    table = ProviderTable({}, [own])

    assert table.split("claude:m", "x") == ("claude", "m")
    assert table.split("Claude:m", "x") == ("anthropic", "m")
    assert repr(table.find("claude")) == "<OpenAIChatProvider http://mine/v1>"


def test_what_nobody_is_called_is_still_unknown_and_a_model_with_a_colon_is_a_model() -> None:
    with pytest.raises(UnknownName):
        contact("llama")
    assert ProviderTable({}).split("qwen3:8b", "ollama") == ("ollama", "qwen3:8b")
    assert set(ALIASES.values()) <= set(WIRES)
    assert called("qwen3") == "qwen3"


async def test_a_program_may_call_vendors_as_people_do() -> None:
    retinue = open_retinue(model="Claude:claude-haiku-4-5", home=":memory:")
    async with retinue:
        brief = await retinue.spawn("hi", detached=True)
        asked = (await retinue.supervisor.recall(brief.run_id)).brief

    assert (asked.provider, asked.model) == ("anthropic", "claude-haiku-4-5")


# ---- what they cost -------------------------------------------------------------------------------------------------


def test_only_a_local_server_at_its_own_machine_is_free() -> None:
    assert tariff(contact("ollama")).price("qwen3") == (0, 0)
    assert tariff(contact("vllm", base_url="http://127.0.0.1:9/v1")).price("qwen3") == (0, 0)
    assert tariff(contact("vllm", base_url="http://gpu.example/v1")).price("qwen3") is None
    assert tariff(contact("openai-chat", base_url="http://127.0.0.1:9/v1")).price("qwen3") is None
    assert tariff(contact("openai-chat", base_url="http://127.0.0.1:9/v1")).price("gpt-5") == (1250, 10_000)
    assert tariff(contact("ollama", prices={"qwen3": Rates(input=1.0, output=2.0)})).price("qwen3") == (1000, 2000)


def test_prices_are_kept_with_a_run_so_that_another_process_counts_alike() -> None:
    mine = contact("ollama", prices={"qwen3": Rates(input=1.0, output=2.0, cached=0.5)})
    setup = Setup(contacts=(mine,))

    assert msgspec.json.decode(setup.text(), type=Setup) == setup


@pytest.mark.real_time
async def test_a_reply_over_any_wire_says_what_it_cost() -> None:
    line = says("hi", usage=Usage(input=1_000, output=100, cached=500))
    async with FakeAnthropic(line) as claude, FakeChat(line) as chat:
        anthropic = await ask(contact("anthropic", base_url=claude.base_url), "claude-haiku-4-5")
        openai = await ask(contact("openai-chat", base_url=chat.base_url), "gpt-4.1-mini")
        unknown = await ask(contact("openai-chat", base_url=chat.base_url), "fake-1")

    assert openai.cost == 500 * 400 + 500 * 100 + 100 * 1_600
    assert anthropic.usage is not None
    cached = anthropic.usage.cached
    assert anthropic.cost == (anthropic.usage.input - cached) * 1_000 + cached * 100 + 100 * 5_000
    assert unknown.cost is None


async def ask(where: Contact, model: str) -> Reply:
    table = ProviderTable({}, [where])
    provider = table.find(where.name)
    assert provider is not None
    try:
        return await provider.answer(Request(model=model, system="", messages=[UserMessage("hi")]), Listener().publish)
    finally:
        await table.close()

"""Write `prices.json`, `windows.json` and `hosts.json` of the providers from two public data sets, shipped as packages.

`make model-data` runs it. Prices are those of genai-prices, context windows and the longest replies those of litellm's
table; each set fills the gaps of the other, and a model that both have dropped keeps its entry. Both packages are
fetched into a temporary folder: retinue depends on neither. Only chat models of the vendors in `VENDORS` are written.
The price of an open model depends on the host that serves it: `hosts.json` has those of the hosts in `HOSTS`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PROVIDERS = ROOT / "src" / "retinue" / "providers"

VENDORS = {
    "anthropic": "anthropic",
    "openai": "openai",
    "gemini": "google",
    "xai": "x-ai",
}
"""Names of vendors in litellm's table, and in genai-prices."""

HOSTS = {
    "openrouter": ("openrouter", "openrouter"),
    "groq": ("groq", "groq"),
    "mistral": ("mistral", "mistral"),
    "deepseek": ("deepseek", "deepseek"),
    "moonshot": ("moonshot", "moonshotai"),
    "zai": ("zai", "zai"),
    "together": ("together_ai", "together"),
    "fireworks": ("fireworks_ai", "fireworks"),
    "cerebras": ("cerebras", "cerebras"),
    "bedrock": ("bedrock_converse", "aws"),
}
"""Providers that serve open models or models of others: their names here, in litellm's table, and in genai-prices."""

CHAT_MODES = ("chat", "responses")

NOT_CHAT = re.compile(
    r"ada|babbage|curie|davinci|embed|moderation|whisper|tts|transcribe|audio|realtime|live|image|imagen|veo|lyria|sora"
    r"|omni-flash|voxtral|ocr|robotics|computer-use|search|deep-research|instruct|aqa|bison|container|gpt-oss|gemma|vision"
    r"|^ft:|^chat-latest$|:"
)
"""Models that are no chat models, whose calls cost more than their tokens, that are open, or that are tuned."""

NOT_CHAT_AT_HOST = re.compile(
    r"embed|moderation|whisper|tts|transcri|audio|speech|image|vision-free|flux|rerank|guard|ocr|stable-diffusion|-to-|up-to"
    r"|bert|e5-|bge-|playai|orpheus|veo|sora|kling|seedance|wan2"
)
"""Models of hosts that are no chat models, and the size classes that genai-prices lists as models."""

_OF_A_REGION = re.compile(r"bedrock/")
"""Models of Bedrock in one region or with a commitment, which litellm lists by paths that are no names of models."""

INPUT_OF_WINDOW = {400_000: 272_000, 1_050_000: 922_000}
"""OpenAI's windows with the output in them, as litellm lists some, and the input that fits."""

VERSION = re.compile(r"(?:[-@](?:\d{8}|\d{4}-\d{2}-\d{2})|-00\d|-latest|-preview(?:-\d{2}-(?:\d{2}|\d{4}))?|@default)$")
"""The suffix of a version, as `providers/pricing.py` removes it."""

DROPPED_OUTPUTS = {
    "claude-2": 4096,
    "claude-3-5-haiku": 8192,
    "claude-3-5-sonnet": 8192,
    "claude-3-7-sonnet": 64000,
    "claude-3-haiku": 4096,
    "claude-3-opus": 4096,
    "claude-3-sonnet": 4096,
    "claude-opus-4": 32000,
    "claude-opus-4-1": 32000,
    "claude-sonnet-4": 64000,
}
"""The longest replies of models that the data sets have dropped and other servers still have, by Anthropic's pages."""

ALIASES = {
    "claude-opus-4-0": "claude-opus-4",
    "claude-sonnet-4-0": "claude-sonnet-4",
    "claude-4-opus": "claude-opus-4",
    "claude-4-sonnet": "claude-sonnet-4",
    "gpt-5.6": "gpt-5.6-sol",
}
"""Other names of models, where the data sets do not list them by that name."""

READ_PRICES = """
import json, sys
from datetime import datetime, timezone
from importlib.metadata import version
from genai_prices.data import providers

asked = json.load(sys.stdin)
day = datetime.now(timezone.utc).replace(minute=0, second=0, microsecond=0)
hours = [day.replace(hour=hour) for hour in range(24)]
height = lambda prices: getattr(getattr(prices, "input_mtok", 0), "base", getattr(prices, "input_mtok", None)) or 0
plain = lambda price: None if price is None else (
    {"base": float(price.base), "tiers": [[tier.start, float(tier.price)] for tier in price.tiers]}
    if hasattr(price, "tiers") else {"base": float(price), "tiers": []}
)
found = {}
for provider in providers:
    if provider.id not in asked:
        continue
    models = {}
    for name in sorted({*asked[provider.id], *(model.id for model in provider.models)}):
        model = provider.find_model(name)
        if model is None:
            continue
        prices = max((model.get_prices(hour) for hour in hours), key=height)  # some vendors are cheaper at night
        fields = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok")
        models[name] = {key: plain(getattr(prices, key, None)) for key in fields}
        models[name]["window"] = model.context_window
    found[provider.id] = models
print(json.dumps({"version": version("genai-prices"), "models": found}))
"""
"""Runs where genai-prices is installed; reads names of models by vendor, and prints their prices."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The content of both files, and what the two data sets disagree about."""

    prices: dict[str, dict[str, Any]]
    windows: dict[str, int]
    outputs: dict[str, int]
    """The tokens of the longest reply."""
    disagreements: list[str] = field(default_factory=list[str])


def main(arguments: Sequence[str]) -> None:
    """Fetch both packages and write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--date", default=datetime.date.today().isoformat(), help="the day of the data [today]")
    date = parser.parse_args(arguments).date
    with tempfile.TemporaryDirectory() as folder:
        windows_version, listed = read_litellm(Path(folder))
        names = {VENDORS[vendor]: sorted(models) for vendor, models in chat_models(listed).items()}
        names |= {priced_as: sorted(_listed_at(listed, listed_as)) for listed_as, priced_as in HOSTS.values()}
        priced = read_genai_prices(Path(folder), names)
    tables = build(listed, priced["models"])
    head = {"as_of": date, "sources": {"genai-prices": priced["version"], "litellm": windows_version}}
    write(
        PROVIDERS / "prices.json", {**head, "aliases": ALIASES}, with_dropped(PROVIDERS / "prices.json", tables.prices)
    )
    outputs = with_dropped(PROVIDERS / "windows.json", {**DROPPED_OUTPUTS, **tables.outputs}, "outputs")
    write(
        PROVIDERS / "windows.json",
        head,
        with_dropped(PROVIDERS / "windows.json", tables.windows),
        {"outputs": outputs},
    )
    hosts = {name: at_host(listed, priced["models"], *names) for name, names in HOSTS.items()}
    rows = {f"{host}/{model}": row for host, models in hosts.items() for model, row in models.items()}
    write(PROVIDERS / "hosts.json", head, rows)
    for line in tables.disagreements:
        print(f"the data sets disagree, and the higher price is used: {line}")
    print(f"{len(tables.prices)} prices and {len(tables.windows)} windows as of {date}")
    print(", ".join(f"{len(models)} models at {name}" for name, models in hosts.items()))


# ---- the data sets ---------------------------------------------------------------------------------------------------


def read_litellm(folder: Path) -> tuple[str, dict[str, dict[str, Any]]]:
    """The version of litellm, and its table of models; the package is downloaded and not installed."""
    _pip("download", "--no-deps", "--dest", str(folder), "litellm")
    (wheel,) = folder.glob("litellm-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        table = json.loads(archive.read("litellm/model_prices_and_context_window_backup.json"))
    return wheel.name.split("-")[1], table


def read_genai_prices(folder: Path, names: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The prices of models by vendor, of the names and of all models that the data set lists."""
    target = folder / "genai-prices"
    _pip("install", "--target", str(target), "genai-prices")
    read = subprocess.run(
        [sys.executable, "-c", READ_PRICES],
        input=json.dumps(names),
        env={"PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(read.stdout)


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *arguments], check=True)


# ---- the tables ------------------------------------------------------------------------------------------------------


def chat_models(listed: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Mapping[str, Any]]]:
    """The chat models of litellm's table by vendor and name, without the vendor's prefix."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {vendor: {} for vendor in VENDORS}
    for name, entry in listed.items():
        vendor = entry.get("litellm_provider")
        bare = name.rpartition("/")[2]
        if vendor in found and entry.get("mode") in CHAT_MODES and not NOT_CHAT.search(bare):
            found[vendor][bare] = entry
    return found


def build(listed: Mapping[str, Mapping[str, Any]], priced: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Tables:
    """Both tables; a version is listed only if it differs from the model that it is a version of."""
    others = {name.rpartition("/")[2] for name, entry in listed.items() if entry.get("mode") not in CHAT_MODES}
    prices: dict[str, dict[str, Any]] = {}
    windows: dict[str, int] = {}
    outputs: dict[str, int] = {}
    disagreements: list[str] = []
    for vendor, models in chat_models(listed).items():
        known = priced.get(VENDORS[vendor], {})
        own = {name for name in known if not NOT_CHAT.search(name) and name not in others}
        for name in sorted({*models, *own}):
            entry = models.get(name, {})
            rates = rates_of(known[name]) if name in known else None
            rates = rates or _litellm_rates(entry)
            window = entry.get("max_input_tokens") or known.get(name, {}).get("window")
            if isinstance(window, int):
                windows[name] = INPUT_OF_WINDOW.get(window, window) if vendor == "openai" else window
            if isinstance(output := entry.get("max_output_tokens"), int):
                outputs[name] = output
            if rates is not None and name in windows:
                prices[name], differences = highest(rates, entry)
                disagreements += [f"{name}: {difference}" for difference in differences]
    return Tables(
        _without_versions(_by_model(prices)),
        _without_versions(_by_model(windows)),
        _without_versions(_by_model(outputs)),
        disagreements,
    )


def _listed_at(listed: Mapping[str, Mapping[str, Any]], host: str) -> dict[str, Mapping[str, Any]]:
    """The chat models of litellm's table at a host, without the host's prefix."""
    return {
        name.removeprefix(f"{host}/"): entry
        for name, entry in listed.items()
        if entry.get("litellm_provider") == host and entry.get("mode") in CHAT_MODES and not _OF_A_REGION.match(name)
    }


def at_host(
    listed: Mapping[str, Mapping[str, Any]],
    priced: Mapping[str, Mapping[str, Mapping[str, Any]]],
    listed_as: str,
    priced_as: str,
) -> dict[str, dict[str, Any]]:
    """The models of a host: price, context window and longest reply of each, as far as they are known."""
    entries, known = _listed_at(listed, listed_as), priced.get(priced_as, {})
    found: dict[str, dict[str, Any]] = {}
    for name in sorted({*entries, *known}):
        entry = entries.get(name, {})
        rates = (rates_of(known[name]) if name in known else None) or _litellm_rates(entry)
        if rates is None or NOT_CHAT_AT_HOST.search(name.lower()):
            continue
        row: dict[str, Any] = {"price": highest(rates, entry)[0]}
        window = entry.get("max_input_tokens") or known.get(name, {}).get("window")
        sizes = {"window": window, "output": entry.get("max_output_tokens")}
        found[name] = row | {key: size for key, size in sizes.items() if isinstance(size, int) and size > 0}
    return found


def rates_of(price: Mapping[str, Any]) -> dict[str, Any] | None:
    """Prices as `Rates` has them, in dollars per million tokens; None for a model without a price of its tokens."""
    input, output = price.get("input_mtok"), price.get("output_mtok")
    if not input or not output or not 0 < input["base"] <= output["base"]:
        return None
    cached, written = price.get("cache_read_mtok"), price.get("cache_write_mtok")
    rates: dict[str, Any] = {"input": input["base"], "output": output["base"]}
    if cached and 0 < cached["base"] < input["base"]:
        rates["cached"] = cached["base"]
    if written and written["base"] > input["base"]:
        rates["cache_write"] = written["base"]
    if input["tiers"]:
        # The first tier: prices above a second one are higher still, and no vendor has such.
        above, long_input = input["tiers"][0]
        long = {"above": above, "input": long_input, "output": _tier(output, above)}
        if "cached" in rates and cached:
            long["cached"] = _tier(cached, above)
        rates["long"] = long
    return rates


def _tier(price: Mapping[str, Any], above: int) -> float:
    return next((tier for start, tier in price["tiers"] if start == above), price["base"])


def highest(rates: Mapping[str, Any], entry: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The rates with the higher price where litellm has another one, and the differences: a limit has to bind."""
    chosen, differences = dict(rates), list[str]()
    for field_name, key in (("input", "input_cost_per_token"), ("output", "output_cost_per_token")):
        own, other = rates[field_name], entry.get(key)
        if other is not None and abs(other * 1e6 - own) > 0.01 * own:
            chosen[field_name] = max(own, round(other * 1e6, 6))
            differences.append(f"{field_name} {own:g} by genai-prices, {other * 1e6:g} by litellm")
    cached = entry.get("cache_read_input_token_cost")
    if differences and cached is not None and "cached" in chosen:
        chosen["cached"] = max(chosen["cached"], round(cached * 1e6, 6))
    return chosen, differences


def _litellm_rates(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    keys = {
        "input_mtok": "input_cost_per_token",
        "output_mtok": "output_cost_per_token",
        "cache_read_mtok": "cache_read_input_token_cost",
        "cache_write_mtok": "cache_creation_input_token_cost",
    }
    given = {field_name: entry[key] for field_name, key in keys.items() if entry.get(key)}
    return rates_of({name: {"base": round(cost * 1e6, 6), "tiers": []} for name, cost in given.items()})


def _by_model(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table with the entry of an alias under the name of its model."""
    named = {ALIASES[name]: value for name, value in table.items() if name in ALIASES}
    return named | {name: value for name, value in table.items() if name not in ALIASES}


def _without_versions(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table with one entry for a model and those of its versions that are equal."""
    bases: dict[str, list[str]] = {}
    for name in table:
        bases.setdefault(_base(name), []).append(name)
    kept: dict[str, Any] = {}
    for base, names in bases.items():
        newest = table[base] if base in table else table[max(names)]
        kept[base] = newest
        kept.update({name: table[name] for name in names if name != base and table[name] != newest})
    return dict(sorted(kept.items()))


def _base(name: str) -> str:
    while (shorter := VERSION.sub("", name)) != name and shorter:
        name = shorter
    return name


def with_dropped(path: Path, models: Mapping[str, Any], table: str = "models") -> dict[str, Any]:
    """The table with the models of the present file that it lacks: runs with them are still shown with their cost."""
    listed = json.loads(path.read_text(encoding="utf-8")).get(table, {})
    return dict(
        sorted({**{name: value for name, value in listed.items() if _base(name) not in models}, **models}.items())
    )


def write(
    path: Path, head: Mapping[str, Any], models: Mapping[str, Any], more: Mapping[str, Mapping[str, Any]] | None = None
) -> None:
    """Write a file with one line for each model; `more` are further tables."""
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    for name, rows in {"models": models, **(more or {})}.items():
        inner = ",\n".join(f"    {json.dumps(model)}: {json.dumps(value)}" for model, value in rows.items())
        lines.append(f"  {json.dumps(name)}: {{\n{inner}\n  }}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

"""The `config.yaml` of the xzatoma program in retinue's layout.

`provider.type` chooses the model's provider; `provider.ollama` and `provider.openai` become providers, so that
`--provider` can name the other one. `agent.max_turns` and `agent.timeout_seconds` limit root runs, and `agent.subagent`
has the same place in both.
"""

from __future__ import annotations

from collections.abc import Mapping

from retinue.core.key_paths import ROOT_DEFAULTS
from retinue.dialects.settings_translation import SettingsTranslation, vendor_variable, with_version

WIRES = {"ollama": "ollama", "openai": "openai-chat"}
"""The tables of providers that have a counterpart, each with its wire: that program speaks chat completions only."""

DEFAULT_MODELS = {"ollama": "llama3.2:latest", "openai": "gpt-4o-mini"}
"""The models that the program takes where its file names none."""

OPENAI_KEY = "XZATOMA_OPENAI_API_KEY"


def translate(values: Mapping[str, object], environ: Mapping[str, str]) -> SettingsTranslation:
    """The file's values in retinue's layout; the environment says which variable holds OpenAI's key."""
    translation = SettingsTranslation(values)
    if translation.require_table(("provider",)):
        _translate_providers(translation, environ)
    translation.move(("agent", "max_turns"), (ROOT_DEFAULTS, "max_turns"))
    translation.move(("agent", "timeout_seconds"), (ROOT_DEFAULTS, "timeout"))
    return translation


def _translate_providers(translation: SettingsTranslation, environ: Mapping[str, str]) -> None:
    chosen = translation.find(("provider", "type"))
    # The chosen one first: it is the default of the file.
    for name in sorted(WIRES, key=lambda name: name != chosen):
        table = ("provider", name)
        if not translation.require_table(table) and name != chosen:
            continue
        address = "host" if name == "ollama" else "base_url"
        base_url = with_version(translation.find((*table, address)))
        if name == "openai":
            own = vendor_variable(WIRES[name], base_url)
            variable = translation.key_variable((*table, "api_key"), own=own, variable=OPENAI_KEY, environ=environ)
            translation.put(("providers", name, "api_key_env"), variable, (*table, "api_key"))
            organization = translation.take((*table, "organization_id"))
            header = ("providers", name, "headers", "OpenAI-Organization")
            translation.put(header, organization, (*table, "organization_id"))
        translation.put(("providers", name, "wire"), WIRES[name], table)
        translation.take((*table, address))
        translation.put(("providers", name, "base_url"), base_url, (*table, address))
        translation.move((*table, "model"), ("providers", name, "model"))
        translation.put(("providers", name, "model"), DEFAULT_MODELS[name], table)
        translation.ignore_rest(table)
    translation.move(("provider", "type"), (ROOT_DEFAULTS, "provider"))
    translation.ignore_rest(("provider",))

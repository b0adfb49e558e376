"""The `buzzllm` dialect: `call_subagent` runs a subagent in a process of its own and returns its text."""

from retinue.dialects.base import ChildProcesses, Deferred, DialectEntry, SettingsSection
from retinue.dialects.buzzllm.requests import CALL_SUBAGENT
from retinue.dialects.buzzllm.settings import PROMPTS, SECTION, BuzzllmSettings

__all__ = ["DIALECT", "NAME", "SETTINGS", "TOOL_NAMES", "BuzzllmSettings"]

NAME = "buzzllm"
SETTINGS = BuzzllmSettings
TOOL_NAMES = (CALL_SUBAGENT,)

PROCESS = "call"
"""The kind of provider: `call:NAME` uses the models of the provider NAME from a child process, `retinue call`."""

DIALECT = DialectEntry(
    name=NAME,
    tool_names=TOOL_NAMES,
    factory=Deferred("retinue.dialects.buzzllm.dialect:BuzzllmDialect"),
    settings=SettingsSection(name=SECTION, type=SETTINGS, about="The dialect buzzllm (--dialect buzzllm)."),
    prompts=PROMPTS,
    processes=ChildProcesses(
        kind=PROCESS,
        make=Deferred("retinue.dialects.buzzllm.process_provider:ProcessProviders"),
        tools=Deferred("retinue.dialects.buzzllm.requests:subset"),
    ),
)

"""TODO door."""

from retinue.dialects.buzzllm.process_providers import BUZZLLM, IN_PROCESS, ProcessProviders, process_provider_config
from retinue.dialects.buzzllm.prompts import prompt_named
from retinue.dialects.buzzllm.requests import CATALOG, NotMet, Request, subset

__all__ = [
    "BUZZLLM",
    "CATALOG",
    "IN_PROCESS",
    "NotMet",
    "ProcessProviders",
    "Request",
    "process_provider_config",
    "prompt_named",
    "subset",
]

"""TODO door."""

from retinue.dialects.buzzllm.process_providers import APART, BUZZLLM, Apart, settled_apart
from retinue.dialects.buzzllm.prompts import prompt_named
from retinue.dialects.buzzllm.requests import CATALOG, NotMet, Request, subset

__all__ = ["APART", "BUZZLLM", "CATALOG", "Apart", "NotMet", "Request", "prompt_named", "settled_apart", "subset"]

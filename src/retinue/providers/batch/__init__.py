"""Batches: model calls that are submitted together and answered within hours, at half the price."""

from retinue.providers.batch.queue import BatchQueue, BatchRecord, batch_records, run_of
from retinue.providers.batch.vendors import (
    AnthropicBatches,
    BatchApi,
    BatchState,
    GeminiBatches,
    OpenAIBatches,
)

__all__ = [
    "AnthropicBatches",
    "BatchApi",
    "BatchQueue",
    "BatchRecord",
    "BatchState",
    "GeminiBatches",
    "OpenAIBatches",
    "batch_records",
    "run_of",
]

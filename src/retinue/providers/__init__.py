"""Model providers: one package per wire, each with an implementation of `retinue.core.ports.Provider`."""

__all__ = ["acp", "batch", "catalog", "key_mask", "model_list", "pricing", "scripted"]

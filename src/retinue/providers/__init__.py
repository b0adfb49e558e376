"""Who answers: one file per wire, each with the one method of `retinue.core.ports.Provider`."""

__all__ = ["catalog", "pricing", "scripted"]

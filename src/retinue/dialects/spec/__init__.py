"""TODO door."""

from retinue.dialects.spec.results import cancelled_notice

__all__ = ["cancelled_notice"]

"""TODO door."""

__all__ = ["checks", "limits", "model_choice", "open"]

"""Starting and resuming runs from settings and options, and the checks of `retinue doctor`; knows no terminal."""

__all__ = ["checks", "model_choice", "resume", "start"]

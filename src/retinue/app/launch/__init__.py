"""Start and resume runs from settings and options, for every front end; does not import `cli`."""

__all__ = ["continuation", "model_choice", "resume", "start", "worker"]

"""Sandboxes for programs of agents: bubblewrap, or none if the user allows that."""

__all__ = ["probe", "subprocess"]

"""Sandboxes for programs of agents: bubblewrap, Seatbelt on macOS, or none if the user allows that."""

__all__ = ["probe", "subprocess"]

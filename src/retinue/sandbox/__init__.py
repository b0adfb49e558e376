"""Where programs run that nobody vouches for: fenced in by bubblewrap, or in the open if the user said so."""

__all__ = ["probe", "subprocess"]

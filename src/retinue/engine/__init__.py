"""How work happens: knows ports, no vendor and no dialect."""

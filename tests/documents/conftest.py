"""Every document is run with a state folder, a working folder and an environment of its own."""

from tests.cli.conftest import cli, folder, home

__all__ = ["cli", "folder", "home"]

"""The command `retinue`, which so far only knows its own version."""

import sys

from retinue.version import __version__


def main(argv: list[str] | None = None) -> int:
    """Do what the command line asks, and return the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments == ["--version"]:
        print(f"retinue {__version__}")
        return 0
    print("usage: retinue --version", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())

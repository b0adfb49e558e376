"""The command `retinue`: answers `--version` itself, and loads the command line only for everything else."""

import sys

from retinue.version import __version__

INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Do what the command line asks, and return the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments == ["--version"]:
        print(f"retinue {__version__}")
        return 0
    if argv is None and arguments == ["call"]:  # somebody waits for it, and has no use for the rest
        from retinue.cli.call import main as answer_call

        answer_call()
    try:
        from retinue.cli.main import main as command_line
    except KeyboardInterrupt:  # what is loaded has nothing to save, and nobody wants to see how far it was
        return INTERRUPTED
    return command_line(arguments)


if __name__ == "__main__":
    sys.exit(main())

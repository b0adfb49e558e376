"""The command `retinue`: answers `--version` itself, and loads the command line for everything else."""

import gc
import sys

from retinue.version import __version__

INTERRUPTED = 130

YOUNG_OBJECTS = 10_000
"""New objects before the garbage collector looks at them; Python's 700 cost a sixth of a run with many children."""


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments == ["--version"]:
        print(f"retinue {__version__}")
        return 0
    if argv is None and arguments == ["call"]:  # a parent process waits for it; the command line is not needed
        from retinue.cli.call import main as answer_call

        answer_call()
    is_own_process = argv is None
    if is_own_process:
        gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
    try:
        from retinue.cli.main import main as command_line
    except KeyboardInterrupt:  # nothing is running yet, so a traceback would only confuse
        return INTERRUPTED
    if is_own_process:
        gc.freeze()  # modules stay until the end: no full collection has to walk through them
    return command_line(arguments)


if __name__ == "__main__":
    sys.exit(main())

"""The command: fuzz one target for some time, print findings, and end with 1 if there are any."""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import resource
import sys
import time

from tests.fuzz.runner import fuzz, keep
from tests.fuzz.target import CORPUS, corpus_files, load, names

MEMORY_BYTES = 4 * 1024**3


def main() -> int:
    """Fuzz as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=names())
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--inputs", type=int, default=None, help="stop after so many inputs")
    parser.add_argument("--seed", type=int, default=None, help="the same seed makes the same inputs (default: random)")
    parser.add_argument("--keep", action="store_true", help="add inputs that reached something new to the corpus")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else int.from_bytes(os.urandom(4), "big")
    faulthandler.enable()
    logging.disable()  # warnings about nonsense in an input are not interesting
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))

    target, folder = load(options.target), CORPUS / options.target
    corpus = [file.read_bytes() for file in corpus_files(options.target)]
    print(f"{options.target}: {len(corpus) + len(target.seeds)} inputs to begin with, seed {seed}", flush=True)
    started = time.monotonic()
    result = fuzz(target, corpus, folder, seed=seed, seconds=options.seconds, inputs=options.inputs)
    seconds = time.monotonic() - started
    written = keep(result, folder) if options.keep else 0
    print(
        f"{options.target}: {result.inputs} inputs in {seconds:.0f} s, {result.lines} lines reached, "
        f"{len(result.kept)} inputs reached something new ({written} kept), {len(result.findings)} findings"
    )
    return 1 if result.findings else 0


if __name__ == "__main__":
    sys.exit(main())

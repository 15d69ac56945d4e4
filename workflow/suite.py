"""`suite.py COMMAND...`: run a command that runs tests, and print the skipped ones at its end.

`make test` and `make test-fast` call this. tests/conftest.py writes what was skipped into the file
that the variable SKIPPED_TESTS names. A signal ends all that the command has started.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
from children import on_signals, wait_for
from job import outlive_terminal

PATIENCE = 5.0  # seconds that tests have to tidy up before they are killed


def main(command: list[str]) -> int:
    """The exit code of the command."""
    skipped = Path(os.environ["SKIPPED_TESTS"])
    skipped.parent.mkdir(parents=True, exist_ok=True)
    skipped.write_text("")
    on_signals(signal.default_int_handler)
    code = wait_for(psutil.Popen(command), PATIENCE)
    if lines := sorted(set(skipped.read_text(encoding="utf-8").splitlines())):
        print("Skipped:", *lines, sep="\n", flush=True)
    return code


if __name__ == "__main__":
    outlive_terminal()
    sys.exit(main(sys.argv[1:]))

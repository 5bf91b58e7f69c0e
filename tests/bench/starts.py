"""How long the first things take that a user meets: an import, and the help of commands.

uv run python tests/bench/starts.py [--json]

Milliseconds of processor time, the least of five starts once the files are in the cache; on a
machine that does nothing else this is about the time that passes.
"""

import argparse
import json
import os
import resource
import shlex
import subprocess
import sys

STARTS = {  # what starts -> the most milliseconds it should take; None: for comparison
    "python -c pass": None,
    'python -c "import legos"': 150,
    'python -c "from legos import Arena, Game, Task"': None,
    "python -m legos --version": 400,
    "python -m legos --help": 400,
    "python -m legos train --help": None,
    "python -m legos runs": None,
}


def processor_ms(command: str, times: int = 5) -> float:
    """Least processor time of a command, in milliseconds."""
    words = [sys.executable, *shlex.split(command)[1:]]
    taken: list[float] = []
    for _ in range(times):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(words, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return 1000 * min(taken)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    found = {command: round(processor_ms(command)) for command in STARTS}
    if as_json:
        print(json.dumps({"load": os.getloadavg()[0], **found}))
    else:
        print("| start | ms | at most |\n|---|---|---|")
        for command, ms in found.items():
            print(f"| `{command}` | {ms} | {STARTS[command] or '-'} |")

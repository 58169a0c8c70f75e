"""``python -m scenarios.faults [--seed N] [--seconds S] [--life N]``: the chaos driver, for as long as you like."""

from __future__ import annotations

import argparse
import random

import trio

from scenarios.faults.chaos import run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scenarios.faults", description=__doc__)
    parser.add_argument("--seed", type=int, help="draws the acts of an earlier run again; else a random one, printed")
    parser.add_argument("--seconds", type=float, default=60.0, help="no new life of a server begins after them")
    parser.add_argument("--first", type=int, default=0, help="the life of the seed to begin with")
    parser.add_argument("--lives", type=int, help="so many lives, however long they take")
    given = parser.parse_args()
    seed = random.randrange(2**32) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    figures = trio.run(lambda: run(seed, given.seconds, first=given.first, lives=given.lives))
    print(figures, flush=True)


if __name__ == "__main__":
    main()

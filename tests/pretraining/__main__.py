"""Make the weights of the built-in model again.

    PYTHONPATH=tests OPENBLAS_NUM_THREADS=1 uv run python -m pretraining --out legos/builtin/model

It takes about three minutes on two cores with an optimised BLAS. The same arguments give the same
bytes on the same machine. The configuration and the tokenizer are copied from the committed folder.
"""

import argparse
import logging
from pathlib import Path

from model_files import ModelShape, write_model
from pretraining.training import NUM_STEPS, known_positions, practise


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pretraining", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write the model to")
    parser.add_argument("--steps", type=int, default=NUM_STEPS, help="optimiser steps")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and of every draw")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    shape = ModelShape()
    weights = practise(shape, known_positions(), num_steps=given.steps, seed=given.seed)
    write_model(given.out, shape, weights)


if __name__ == "__main__":
    main()

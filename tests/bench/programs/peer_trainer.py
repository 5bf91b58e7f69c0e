"""The optimiser step of another trainer, as a program that this trainer's own Python runs.

    PYTHON peer_trainer.py MODEL

loads the model with LoRA of rank 8 on all its layers, prints the name of the trainer installed, and
answers every line ``{"rows": [[token ids, prompt length], ..], "count": 4}`` of its input with the
seconds and the peak bytes of one step on these rows, ``count`` rows at a time. It imports nothing
of legos, which is not installed there.

Only the step is taken from each trainer: its gradients, without a KL term, and its update. Answers
are not sampled, and no rewards are computed.
"""

import importlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import load_model

__all__ = ["RANK", "SCALE", "Answers", "installed", "mlx_lm_lora_gradients"]

T = TypeVar("T")

Rows = Sequence[tuple[Sequence[int], int]]
Step = Callable[[Rows, int], None]
RANK, SCALE = 8, 4.0


def mlx_lm_lora_gradients(
    model: nn.Module, rows: Rows, advantages: Sequence[float], count: int
) -> Any:
    """Gradients of mlx-lm-lora's GRPO loss for completions sampled from the current policy.

    Args:
        model: the module tree with LoRA.
        rows: token ids, and how many of them are the prompt.
        advantages: advantage of each row.
        count: number of rows that are computed together.

    Returns:
        The tree of gradients of the mean loss over completion tokens.
    """
    trainer: Any = importlib.import_module("mlx_lm_lora.trainer.grpo_trainer")
    _, gradients = trainer._grpo_value_and_grad(
        nn.value_and_grad(model, trainer.grpo_loss),
        model,
        count,
        ref_model=None,
        batch=([list(tokens[:prompt]) for tokens, prompt in rows], None, None, None, None),
        completions=[mx.array(list(tokens[prompt:])) for tokens, prompt in rows],
        completion_texts=[""] * len(rows),
        batch_indices=list(range(len(rows))),
        advantages=mx.array(list(advantages)),
        beta=0.0,
        epsilon=0.2,
        grpo_loss_type="bnpo",
    )
    return gradients


def _mlx_lm_lora(model: nn.Module, optimiser: optim.Optimizer) -> Step:
    def step(rows: Rows, count: int) -> None:
        optimiser.update(model, mlx_lm_lora_gradients(model, rows, _advantages(rows), count))
        mx.eval(model.trainable_parameters(), optimiser.state)

    return step


def _mlx_tune(model: nn.Module, optimiser: optim.Optimizer) -> Step:
    """Its compiled step, which updates the adapter after every ``count`` rows."""
    losses: Any = importlib.import_module("mlx_tune.losses")
    speed: Any = importlib.import_module("mlx_tune._perf")

    def loss(model: Any, sequences: mx.array, lengths: mx.array, advantages: mx.array) -> mx.array:
        logprobs = losses.compute_log_probs_with_lengths(model, sequences, lengths)
        return mx.mean(-advantages * logprobs)

    gradients = nn.value_and_grad(model, loss)
    state = speed.make_step_state(model, optimiser)

    def update(sequences: mx.array, lengths: mx.array, advantages: mx.array) -> mx.array:
        value, found = gradients(model, sequences, lengths, advantages)
        optimiser.update(model, found)
        return value

    compiled = speed.compiled_step(update, state)

    def step(rows: Rows, count: int) -> None:
        advantages = _advantages(rows)
        for first in range(0, len(rows), count):
            block = [tokens for tokens, _ in rows[first : first + count]]
            longest = speed.bucket_length(max(map(len, block)))
            sequences = mx.array([[*tokens, *[0] * (longest - len(tokens))] for tokens in block])
            lengths = mx.array([len(tokens) for tokens in block])
            value = compiled(sequences, lengths, mx.array(advantages[first : first + count]))
            mx.eval(state, value)

    return step


def _inductive_mlxrl(model: nn.Module, optimiser: optim.Optimizer) -> Step:
    grpo: Any = importlib.import_module("mlxrl.train.grpo")
    logprobs: Any = importlib.import_module("mlxrl.policy.logprobs")
    algorithm: Any = importlib.import_module("mlxrl.algo.grpo").GRPOAlgorithm()

    def step(rows: Rows, count: int) -> None:
        prompts = tuple(tuple(tokens[:prompt]) for tokens, prompt in rows)
        answers = tuple(tuple(tokens[prompt:]) for tokens, prompt in rows)
        inputs = logprobs.prepare_completion_logprob_inputs(prompts, answers, pad_token_id=0)
        advantages = mx.array(_advantages(rows))
        batch = grpo.GRPOBatch(
            prompt_token_ids=prompts,
            completion_token_ids=answers,
            rewards=advantages,
            advantages=advantages,
            old_policy_logprobs=-mx.ones(inputs.mask.shape),
            reference_logprobs=-mx.ones(inputs.mask.shape),
            mask=inputs.mask,
            reference_is_policy=True,
            logprob_inputs=inputs,
        )
        grpo.optimizer_step(
            model, optimiser, batch, 0.0, 0, algorithm=algorithm, micro_batch_size=count
        )

    return step


_TRAINERS: dict[str, tuple[str, Callable[[nn.Module, optim.Optimizer], Step]]] = {
    "mlx_lm_lora": ("mlx-lm-lora", _mlx_lm_lora),
    "mlx_tune": ("mlx-tune", _mlx_tune),
    "mlxrl": ("inductive-mlxrl", _inductive_mlxrl),
}
"""Package -> the name of its project, and what makes its step."""


def _advantages(rows: Rows) -> list[float]:
    return [1.0 - 2.0 * (number % 2) for number in range(len(rows))]


def _with_lora(folder: Path) -> nn.Module:
    """The model with LoRA on every linear module of its layers."""
    model: Any = load_model(folder)[0]
    model.freeze()
    names = {
        name
        for layer in model.layers
        for name, module in layer.named_modules()
        if isinstance(module, nn.Linear)
    }
    lora = {"rank": RANK, "scale": SCALE, "dropout": 0.0, "keys": sorted(names)}
    linear_to_lora_layers(model, len(model.layers), lora)
    model.train()
    mx.eval(model.parameters())
    return model


class Answers:
    """Answers, a line each, to the process that has started the program."""

    def __init__(self) -> None:
        self._lines = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # the trainers print on standard output

    def say(self, answer: Any) -> None:
        """Write one answer as JSON."""
        self._lines.write(f"{json.dumps(answer)}\n")
        self._lines.flush()


def installed(trainers: Mapping[str, T]) -> T:
    """What stands behind the first of the packages that is installed."""
    found = [name for name in trainers if importlib.util.find_spec(name) is not None]
    if not found:
        raise SystemExit(f"{sys.executable} has none of {', '.join(trainers)}")
    return trainers[found[0]]


def _main(folder: str) -> None:
    answers = Answers()
    project, made = installed(_TRAINERS)
    step = made(_with_lora(Path(folder)), optim.AdamW(learning_rate=1e-6))
    answers.say(project)
    for line in sys.stdin:
        order = json.loads(line)
        started = time.perf_counter()
        mx.clear_cache()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        step(order["rows"], order["count"])
        cost = {"seconds": time.perf_counter() - started}
        cost["peak_bytes"] = mx.get_peak_memory() - before
        answers.say(cost)


if __name__ == "__main__":
    _main(sys.argv[1])

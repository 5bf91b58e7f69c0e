"""A whole GRPO run of another trainer, as a program that this trainer's own Python runs.

    PYTHON peer_run.py MODEL FOLDER < ORDER

reads one JSON object (questions with their right numbers, prompts of a step, answers to each, token
limit, steps, learning rate), trains LoRA of rank 8 on the last 16 layers, writes the adapter of
every step to ``FOLDER/v<step>`` as mlx-lm does, and prints the name of the trainer, then for each
step its seconds, without the time that writing took, and the peak bytes since the start. It imports
nothing of legos, which is not installed there.

Every trainer samples with temperature 1 from the whole distribution, has no KL term, and clips
ratios to 1 +- 0.2; the rest is as the trainer does it.
"""

import importlib
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).parents[2])  # the folder of the package bench

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from bench.programs.peer_trainer import RANK, SCALE, Answers, installed
from mlx.utils import tree_flatten
from mlx_lm import load
from mlx_lm.tuner.utils import linear_to_lora_layers

LAYERS = 16  # the last ones have LoRA
COMPLETE = 0.2  # reward of an answer that ends before its token limit
_NUMBER = re.compile(r"-?\d+")

Order = dict[str, Any]
Stepped = Callable[[], None]
"""Called after each optimiser step."""


class _Report:
    """Writes adapters, and the time between steps."""

    def __init__(self, model: nn.Module, folder: Path, answers: Answers) -> None:
        self._model = model
        self._folder = folder
        self._answers = answers
        self._step = 0
        self._since = time.perf_counter()

    def stepped(self) -> None:
        mx.eval(self._model.trainable_parameters())
        seconds = time.perf_counter() - self._since
        self._step += 1
        folder = self._folder / f"v{self._step}"
        folder.mkdir(parents=True)
        weights = dict(tree_flatten(self._model.trainable_parameters()))
        mx.save_safetensors(str(folder / "adapters.safetensors"), weights)
        lora = {"rank": RANK, "scale": SCALE, "dropout": 0.0, "keys": _keys(self._model)}
        config = {"fine_tune_type": "lora", "num_layers": LAYERS, "lora_parameters": lora}
        (folder / "adapter_config.json").write_text(json.dumps(config))
        peak = mx.get_peak_memory()
        self._answers.say({"step": self._step, "seconds": seconds, "peak_bytes": peak})
        self._since = time.perf_counter()


def _keys(model: Any) -> list[str]:
    """Names of the linear modules of a layer."""
    linear = (nn.Linear, importlib.import_module("mlx_lm.tuner.lora").LoRALinear)
    modules = model.layers[-1].named_modules()
    names = {name.removesuffix(".linear") for name, module in modules if isinstance(module, linear)}
    return sorted(names)


def _reward(text: str, right: str, complete: bool) -> float:
    return float(_NUMBER.findall(text)[-1:] == [right]) + COMPLETE * complete


def _mlx_lm_lora(model: Any, tokenizer: Any, order: Order, stepped: Stepped) -> None:
    trainer: Any = importlib.import_module("mlx_lm_lora.trainer.grpo_trainer")

    def rows() -> Iterator[tuple[list[int], list[int], str, str]]:
        for question, right in order["questions"]:
            yield _chat(tokenizer, question), [], question, right

    def batches(dataset: Any, batch_size: int, **_: Any) -> Iterator[Any]:
        for first in range(0, len(dataset), batch_size):
            tokens, answers, prompts, rights = zip(
                *dataset[first : first + batch_size], strict=True
            )
            yield list(tokens), list(answers), list(prompts), list(rights), None

    def rewards(prompts: Any, completions: Any, answer: Any, **_: Any) -> list[float]:
        return [
            # its texts do not tell how they ended, so their tokens are counted again
            _reward(text, right, len(tokenizer.encode(text)) < order["max_tokens"])
            for text, right in zip(completions, answer, strict=True)
        ]

    class Callback:
        def on_train_loss_report(self, _: Any) -> None:
            stepped()

        def on_val_loss_report(self, _: Any) -> None: ...

    args = trainer.GRPOTrainingArgs(
        batch_size=order["prompts"],
        iters=order["steps"],
        steps_per_report=1,
        steps_per_save=order["steps"] + 1,
        adapter_file=str(Path(order["folder"]) / "last.safetensors"),
        group_size=order["group"],
        beta=0.0,
        epsilon=0.2,
        max_completion_length=order["max_tokens"],
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        grpo_loss_type="bnpo",
    )
    trainer.train_grpo(
        model,
        None,
        tokenizer,
        optim.AdamW(learning_rate=order["learning_rate"], weight_decay=0.0),
        list(rows()),
        reward_funcs=[rewards],
        args=args,
        iterate_batches=batches,
        training_callback=Callback(),
        end_answer_token="",
    )


def _inductive_mlxrl(model: Any, tokenizer: Any, order: Order, stepped: Stepped) -> None:
    grpo: Any = importlib.import_module("mlxrl.train.grpo")
    rollout: Any = importlib.import_module("mlxrl.rollout.optimized")
    sampling: Any = importlib.import_module("mlxrl.rollout.naive")
    algorithm: Any = importlib.import_module("mlxrl.algo.grpo").DAPOAlgorithm(
        clip_low=0.2, clip_high=0.2, dynamic_sampling=False
    )
    config = sampling.SamplingConfig(max_tokens=order["max_tokens"], temperature=1.0, top_p=1.0)
    optimiser = optim.AdamW(learning_rate=order["learning_rate"], weight_decay=0.0)
    pad = tokenizer.pad_token_id or 0
    for step in range(order["steps"]):
        first = step * order["prompts"]
        mine = order["questions"][first : first + order["prompts"]]
        answers = rollout.generate_prefix_cached_group_rollouts(
            model,
            tokenizer,
            [question for question, _ in mine],
            order["group"],
            config,
            seed=step,
            batch_groups=True,
        )
        rewards = [
            _reward(
                answer.text,
                mine[answer.prompt_index][1],
                answer.completion_tokens[-1] in tokenizer.eos_token_ids,
            )
            for answer in answers
        ]
        batch = grpo.batch_from_rollouts(
            model, answers, rewards, order["group"], pad, algorithm, compute_reference=False
        )
        grpo.optimizer_step(
            model, optimiser, batch, 0.0, pad, algorithm, micro_batch_size=order["rows"]
        )
        stepped()


_TRAINERS = {
    "mlx_lm_lora": ("mlx-lm-lora", _mlx_lm_lora),
    "mlxrl": ("inductive-mlxrl", _inductive_mlxrl),
}
"""Package -> the name of its project, and what trains with it."""


def _chat(tokenizer: Any, question: str) -> list[int]:
    messages = [{"role": "user", "content": question}]
    found = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    return list(found["input_ids"] if hasattr(found, "keys") else found)


def _main(folder: str, out: str, order: Order) -> None:
    answers = Answers()
    project, train = installed(_TRAINERS)
    model: Any
    model, tokenizer, *_ = load(folder)
    model.freeze()
    lora = {"rank": RANK, "scale": SCALE, "dropout": 0.0, "keys": _keys(model)}
    linear_to_lora_layers(model, LAYERS, lora)
    mx.random.seed(0)
    mx.eval(model.parameters())
    report = _Report(model, Path(out), answers)
    answers.say(project)
    train(model, tokenizer, order | {"folder": out}, report.stepped)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], json.load(sys.stdin))

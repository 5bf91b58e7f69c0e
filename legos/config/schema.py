"""Every setting of a run in a few small groups, each with its meaning, unit and range.

Settings are read by ``resolve`` from TOML files and the command line. Only ``legos.wiring`` and the
commands see them; all other parts take explicit arguments.
"""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import model_validator

from legos.config.objective import ObjectiveSettings
from legos.config.setting import Settings, knob
from legos.credit.registry import DISCOUNTED, WITHOUT_GROUPS, CreditName
from legos.data.limits import EngineLimits, InFlight
from legos.errors import ConfigError

__all__ = [
    "CreditName",
    "GenerationConfig",
    "IllegalMove",
    "LoopConfig",
    "PlayConfig",
    "RunConfig",
    "TrackConfig",
    "TrainingConfig",
]

IllegalMove = Literal["forfeit", "retry", "random"]


class TrainingConfig(ObjectiveSettings):
    """The optimiser step: its size, its loss, its learning rate, and the LoRA adapter it moves."""

    micro_batch_tokens: int = knob(
        4096,
        "Padded tokens computed at once, shared prefixes once; a longer sample is computed alone. "
        "Splits the work, never the result.",
        unit="tokens",
        ge=1,
    )
    gradient_checkpointing: bool = knob(
        False,
        "Keep only the inputs of layers and compute them again on the way back: a fraction of the "
        "memory for about a third more time.",
    )
    memory_limit_gib: float | None = knob(
        None,
        "What the device may hold at the most: less is computed at once to stay below it, and "
        "samples that do not fit alone are left out; none: most of what the device has.",
        unit="GiB",
        gt=0,
    )
    min_samples_per_step: int = knob(
        16, "Samples gathered before one optimiser step.", unit="samples", ge=1
    )
    staleness_limit: int = knob(
        3,
        "Oldest policy a sample's tokens may come from; 0: generation and training take turns.",
        unit="optimiser steps",
        ge=0,
    )
    learning_rate: float = knob(1e-5, "Step size of Adam after the warm-up.", gt=0, le=1)
    learning_rate_end_fraction: float = knob(
        1.0,
        "Share of the learning rate left at the last step, reached linearly.",
        unit="share",
        ge=0,
        le=1,
    )
    warmup_steps: int = knob(
        0, "Steps in which the learning rate rises linearly from 0.", unit="optimiser steps", ge=0
    )
    weight_decay: float = knob(0.0, "Decoupled weight decay (AdamW).", ge=0, lt=1)
    adam_beta1: float = knob(0.9, "Decay of Adam's first moment.", ge=0, lt=1)
    adam_beta2: float = knob(0.95, "Decay of Adam's second moment.", ge=0, lt=1)
    max_grad_norm: float = knob(1.0, "Gradients are scaled down to this norm.", gt=0)
    loss_normalisation: Literal["token", "sample", "constant", "prompt"] = knob(
        "token", "What the loss is averaged over: tokens, samples, a constant length, or groups."
    )
    constant_length: int | None = knob(
        None,
        "Length that stands for every sample where loss_normalisation is 'constant'.",
        unit="tokens",
        ge=1,
    )
    lora_rank: int = knob(8, "Rank of each LoRA pair.", ge=1, le=1024)
    lora_layers: int = knob(
        16, "Transformer blocks that get LoRA, counted from the last.", unit="layers", ge=1
    )
    lora_alpha: float = knob(
        32.0,
        "LoRA's output is multiplied by alpha / rank, so that one learning rate suits any rank.",
        gt=0,
    )
    lora_head: bool | None = knob(
        None, "Whether the output head gets LoRA; none: only where the model is small."
    )
    use_dora: bool = knob(
        False,
        "DoRA: learn the length of every adapted row beside LoRA; a slower step, not for experts.",
    )

    @property
    def lora_scale(self) -> float:
        """Multiplier of LoRA's output: alpha / rank."""
        return self.lora_alpha / self.lora_rank

    @model_validator(mode="after")
    def _check(self) -> Self:
        constant = self.loss_normalisation == "constant"
        if constant != (self.constant_length is not None):
            raise ConfigError(
                f"loss_normalisation is {self.loss_normalisation!r} and constant_length is "
                f"{self.constant_length}; 'constant' needs a length, and nothing else uses one"
            )
        if self.use_dora and self.weight_decay:
            raise ConfigError(
                f"use_dora is true and weight_decay is {self.weight_decay}; it would pull the "
                "lengths of rows, and with them the model, to 0: set weight_decay to 0"
            )
        return self


class GenerationConfig(Settings):
    """How completions are sampled, and how many at once."""

    temperature: float = knob(1.0, "Sampling temperature of training play.", gt=0, le=10)
    max_tokens: int | None = knob(
        None,
        "Longest completion of one turn; none: the arena's own (in games, the longest move).",
        unit="tokens",
        ge=1,
    )
    max_batch: int = knob(256, "Completions decoded together.", unit="rows", ge=1)
    prefill_tokens: int = knob(
        4096, "Prompt tokens of one forward pass while nothing is decoded.", unit="tokens", ge=1
    )
    chunk_tokens: int = knob(
        512, "Prompt tokens of one forward pass while completions wait.", unit="tokens", ge=1
    )
    cache_gib: float = knob(
        4.0, "Keys and values of the completions being decoded.", unit="GiB", gt=0
    )
    prefix_cache_gib: float = knob(
        1.0, "Keys and values kept for prompts that begin alike; 0: none.", unit="GiB", ge=0
    )
    in_flight: InFlight = knob(
        "switch",
        "New weights while a completion runs: it goes on under them, or ends under the old ones.",
    )

    def limits(self) -> EngineLimits:
        """What the engine may use."""
        return EngineLimits(
            max_rows=self.max_batch,
            prefill_tokens=self.prefill_tokens,
            chunk_tokens=self.chunk_tokens,
            cache_bytes=int(self.cache_gib * (1 << 30)),
            prefix_bytes=int(self.prefix_cache_gib * (1 << 30)),
            in_flight=self.in_flight,
        )


class PlayConfig(Settings):
    """How the arena is played; none leaves a choice to the arena."""

    tasks_per_step: int | None = knob(
        None, "Tasks played for one training batch; none: the arena's own.", unit="tasks", ge=1
    )
    group_size: int | None = knob(
        None, "Plays of each task that are compared; none: the arena's own.", unit="episodes", ge=1
    )
    credit: CreditName | None = knob(
        None, "Rule from rewards to advantages; none: the arena's own."
    )
    discount: float = knob(
        1.0,
        "What a reward one turn later is worth, in the credit rules that look at single turns.",
        ge=0,
        le=1,
    )
    overlong_margin: int | None = knob(
        None,
        "Tokens before the limit of a completion in which a penalty grows from 0 to 1; none: no "
        "penalty.",
        unit="tokens",
        ge=1,
    )
    illegal: IllegalMove | None = knob(
        None,
        "What an illegal move costs: the play, another try with the reason, or a random "
        "legal move in its place; none: the arena's own.",
    )
    restrict_choices: bool | None = knob(
        None, "Sample only among the legal moves; none: the arena's own."
    )
    continue_tokens: bool | None = knob(
        None,
        "A seat's conversation goes on in the tokens that were sampled; no: every prompt is "
        "rendered again from its messages, a break where the template rewrites former answers; "
        "none: the arena's own.",
    )
    concurrency: int = knob(256, "Plays going on at once.", unit="episodes", ge=1)
    options: dict[str, Any] = knob(
        {}, "Arguments of the arena's constructor, by name (--play.options.NAME VALUE)."
    )


class LoopConfig(Settings):
    """The run: its length, its overlap, and what it leaves behind."""

    steps: int = knob(200, "Length of the run.", unit="optimiser steps", ge=1)
    step_concurrency: int = knob(
        2, "Training batches being played at once.", unit="batches", ge=1, le=64
    )
    deterministic: bool = knob(
        False,
        "Generation and training take turns on one thread, so that a run repeats bit for bit; "
        "sets staleness_limit to 0 and step_concurrency to 1.",
    )
    checkpoint_every: int = knob(
        50,
        "Steps between checkpoints; 0: only at the start, by time and at the end.",
        unit="optimiser steps",
        ge=0,
    )
    checkpoint_seconds: float = knob(
        600.0,
        "Longest time between checkpoints, looked at after each step.",
        unit="s",
        gt=0,
    )
    keep_checkpoints: int = knob(3, "Newest checkpoints that are kept.", unit="checkpoints", ge=1)
    keep_best: str | None = knob(
        None,
        "Figure of the evaluation by which the best checkpoint is kept as well, such as "
        "optimal_move_rate or -exploitability (less is better); none: no such checkpoint.",
    )
    keep_batches: bool = knob(
        False, "Keep the samples of every step, so that `legos runs replay` can compute it again."
    )
    evaluate_every: int = knob(
        50,
        "Steps between evaluations; 0: only the first and the last.",
        unit="optimiser steps",
        ge=0,
    )
    evaluation_plays: int = knob(
        64,
        "Plays of one evaluation, where the arena is no game that is evaluated exactly; a list of "
        "fewer tasks is played over and over.",
        unit="episodes",
        ge=1,
    )
    evaluation_temperature: float | None = knob(
        None,
        "Sampling temperature of these plays; 0: the most probable token; none: that of training "
        "play.",
        ge=0,
        le=10,
    )
    episodes_kept_per_step: int = knob(
        8, "Plays written to the run folder at each step.", unit="episodes", ge=0
    )
    max_failed_share: float = knob(
        0.9,
        "Largest share of failed plays in the last ten batches; beyond it the run ends with the "
        "first failure.",
        ge=0,
        le=1,
    )
    serve_port: int | None = knob(
        None,
        "Port of 127.0.0.1 where the policy is served while it is trained; 0: a free one; none: "
        "nowhere.",
        ge=0,
        le=65535,
    )


class TrackConfig(Settings):
    """Where the numbers go besides metrics.jsonl."""

    console: bool = knob(True, "Show a table while the run goes on.")
    wandb: Literal["off", "auto", "online", "offline"] = knob(
        "off", "Weights & Biases; auto: online where a key is configured, else offline."
    )
    project: str = knob("legos", "Weights & Biases project.")


class RunConfig(Settings):
    """One run: a model, an arena, and how they meet."""

    model: str = knob("builtin", "A model folder, a hub name, or the built-in model.")
    arena: str = knob("nim", "An arena's name, path/to/file.py:Class, or package.module:Class.")
    out: Path | None = knob(None, "Run folder; none: a new one under runs/.", loose=True)
    seed: int = knob(0, "Of everything random in the run.", ge=0, lt=2**32)
    fork_from: str | None = knob(
        None, "Checkpoint of another run that this one starts from, as RUN@STEP; none: none."
    )
    training: TrainingConfig = knob(TrainingConfig(), "The optimiser step.")
    generation: GenerationConfig = knob(GenerationConfig(), "Sampling.")
    play: PlayConfig = knob(PlayConfig(), "Playing the arena.")
    loop: LoopConfig = knob(LoopConfig(), "The run as a whole.")
    track: TrackConfig = knob(TrackConfig(), "Where numbers go.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        training, loop, play = self.training, self.loop, self.play
        if loop.deterministic and training.staleness_limit > 0:
            raise ConfigError(
                "loop.deterministic is true but training.staleness_limit is "
                f"{training.staleness_limit}; a deterministic run allows no lag: "
                "set the limit to 0 or leave it out"
            )
        if loop.deterministic and loop.step_concurrency > 1:
            raise ConfigError(
                f"loop.deterministic is true but loop.step_concurrency is {loop.step_concurrency}; "
                "a deterministic run plays one batch at a time: set it to 1 or leave it out"
            )
        if play.group_size == 1 and play.credit not in (None, *WITHOUT_GROUPS):
            raise ConfigError(
                f"play.group_size is 1 but play.credit {play.credit!r} compares the plays of a "
                "group; every advantage would be 0: use at least 2, or credit 'rae'"
            )
        if play.credit == "rae" and training.zero_advantage == "remove":
            raise ConfigError(
                "training.zero_advantage is 'remove' but play.credit is 'rae', where an advantage "
                "of 0 is an accident and says nothing of the task; set zero_advantage to 'keep'"
            )
        if play.discount != 1.0 and play.credit not in DISCOUNTED:
            raise ConfigError(
                f"play.discount is {play.discount} but play.credit is {play.credit!r}, which gives "
                f"all turns of a play the same advantage; use one of {', '.join(DISCOUNTED)}"
            )
        return self

"""Every setting of a run, in five groups; each has a description, a unit and a range.

``resolve`` reads settings from TOML files and the command line. Only ``legos.wiring`` and the
commands see them; all other parts take explicit arguments.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple, Self

import numpy as np
from pydantic import model_validator

from legos.config.league import LeagueConfig
from legos.config.learning_rate import learning_rates
from legos.config.objective import ObjectiveSettings
from legos.config.play import MixedArena, PlayConfig, check_play
from legos.config.setting import Settings, knob
from legos.config.together import EXCLUSIVE, NEEDED, check_together
from legos.errors import ConfigError
from legos.loop.deficits import Spill, check_shares
from legos.records.limits import EngineLimits
from legos.records.message import MIN_TEMPERATURE, Thinking
from legos.records.step import Update

UNKNOWN_SIZE = 1e-4  # learning rate where the model's configuration names no hidden size


class TrainingConfig(ObjectiveSettings):
    """The optimiser step: its size, its objective, its learning rate, and the LoRA adapter."""

    micro_batch_tokens: int | None = knob(None, unit="tokens", ge=1)
    """Padded tokens of one forward and backward pass; shared prefixes count once, and a longer
    sample gets a pass of its own. Lower it to save memory; the gradient stays the same. None: 4096,
    halved until a pass takes a 32nd of the memory, but at least 256."""
    gradient_checkpointing: bool = knob(False)
    """Keep only the inputs of each layer and recompute the rest in the backward pass. Takes a
    fraction of the memory and about a third more time."""
    memory_limit_gib: float | None = knob(None, unit="GiB", gt=0)
    """Memory that the device may use. Micro-batches shrink to stay below it, and samples that do
    not fit alone are left out; none: most of what the device has."""
    decode_pause_s: float | None = knob(None, unit="seconds", gt=0)
    """Longest forward and backward pass, for which the engine's next token may have to wait; from
    the second step on, micro-batches shrink to it by their measured speed. Set it where people wait
    for answers while the policy trains (loop.serve_port); training then takes longer."""
    min_samples_per_step: int = knob(16, unit="samples", ge=1)
    """Samples that one optimiser step waits for, without tokens_per_step. Raise it for a steadier
    gradient."""
    tokens_per_step: int | None = knob(None, unit="tokens", ge=1)
    """Sampled tokens of one optimiser step, which the arenas of a mix share; none: 2048 with
    several arenas, and with one its tasks and samples."""
    spill: Spill = knob("block")
    """When an arena of a mix has too few tokens for a step: block waits for it, borrow fills the
    step from the other arenas, which get less in later steps."""
    staleness_limit: int = knob(3, unit="optimiser steps", ge=0)
    """Largest number of steps between the policy that sampled a token and the one that trains on
    it; 0: generation and training take turns, as `legos train` does where one device has both."""
    learning_rate: float | None = knob(None, gt=0, le=1)
    """Learning rate of Adam after the warm-up; none: by the size of the model."""
    learning_rate_end_fraction: float = knob(1.0, unit="share", ge=0, le=1)
    """The learning rate falls linearly to this share of itself after the last step; 1: constant."""
    warmup_steps: int = knob(0, unit="optimiser steps", ge=0)
    """Steps in which the learning rate rises linearly from 0. Raise it where the first steps are
    skipped."""
    loss_normalisation: Literal["token", "sample", "constant", "prompt"] = knob("token")
    """What counts the same in the loss: every token, every sample, every sample divided by
    256 tokens (constant), or every task (prompt)."""
    lora_rank: int = knob(8, ge=1, le=1024)
    """Rank of the LoRA matrices. Raise it where the adapter lacks capacity; memory grows with
    it."""
    lora_layers: int = knob(16, unit="layers", ge=1)
    """Number of transformer blocks with LoRA, counted from the last one."""
    lora_alpha: float = knob(32.0, gt=0, le=1e4)
    """The output of LoRA is multiplied by lora_alpha / lora_rank, so a learning rate found at one
    rank holds at others."""

    @property
    def parts_at_once(self) -> int:
        """Parts of the program that compute at once: play and training, unless they take turns.

        With turns, an evaluation runs beside the next play, and rarely longer than that.
        """
        return 2 if self.staleness_limit else 1

    def for_model(self, folder: Path, dtype: str) -> Self:
        """A copy in which the model sets what is left out: learning rate, and anchor of the ratios.

        Args:
            folder: folder of the model.
            dtype: the narrowest float type of its weights.
        """
        rates = learning_rates(folder) if self.learning_rate is None else None
        found = self if rates is None else self.replace(learning_rate=rates.middle)
        return found.anchored(dtype)

    def update(self, step: int, num_steps: int) -> Update:
        """How the gradients of a step of a run of ``num_steps`` are applied."""
        warm = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        rate = UNKNOWN_SIZE if self.learning_rate is None else self.learning_rate
        end = rate * self.learning_rate_end_fraction
        return Update(
            learning_rate=warm * float(np.interp(step, (0, num_steps or np.inf), (rate, end))),
            ema_decay=self.ema_decay if self.ema_kl_coef else None,
            kl_refresh_steps=self.kl_refresh_steps,
        )


class GenerationConfig(Settings):
    """How completions are sampled, and what the engine may use."""

    temperature: float = knob(1.0, ge=MIN_TEMPERATURE, le=10)
    """Sampling temperature in training."""
    max_tokens: int | None = knob(None, unit="tokens", ge=1)
    """Longest completion of one turn; none: the arena's own limit (in games, the longest move)."""
    thinking: Thinking | None = knob(None)
    """Whether the model thinks before it answers (off, on), or how long (low, medium, high), where
    its chat template has a variable for it: enable_thinking, thinking or reasoning_effort; default:
    as the template has it. None: as the adapter that the run starts from, or off where the template
    can, because few answers end within the arenas' limits otherwise; in legos imitate as the
    template has it. Raise max_tokens where you turn it on."""
    max_batch: int = knob(256, unit="rows", ge=1)
    """Completions decoded in one batch. Lower it to save memory. On a CPU, a model whose weights
    take more than a 64th of the memory decodes at most 96, because more are no faster."""

    def limits(self, memory_gib: float | None = None) -> EngineLimits:
        """What the engine may use, where this memory may be used in all."""
        memory = None if memory_gib is None else int(memory_gib * (1 << 30))
        return EngineLimits(max_rows=self.max_batch, memory_bytes=memory)


class LoopConfig(Settings):
    """The run: its length, its concurrency, and what it keeps."""

    steps: int = knob(200, unit="optimiser steps", ge=1)
    """Length of the run."""
    step_concurrency: int = knob(2, unit="steps", ge=1, le=64)
    """Number of steps whose tasks (play.tasks_per_step) are played at the same time."""
    deterministic: bool = knob(False)
    """Make the run repeat bit for bit: generation and training take turns on one thread. Sets
    staleness_limit to 0 and step_concurrency to 1."""
    checkpoint_every: int = knob(50, unit="optimiser steps", ge=0)
    """Steps between checkpoints; 0: only at the start, every ten minutes and at the end."""
    keep_checkpoints: int = knob(3, unit="checkpoints", ge=1)
    """Number of newest checkpoints that are kept. Raise it to fork from more steps."""
    keep_best: str | None = knob(None)
    """Also keep the checkpoint with the best value of this metric of the evaluation, such as
    optimal_move_rate, or -exploitability where less is better; a league takes a snapshot of it.
    None: keep no such one."""
    evaluate_every: int = knob(50, unit="optimiser steps", ge=0)
    """Steps between evaluations; 0: only the first and the last."""
    evaluation_plays: int = knob(64, unit="episodes", ge=1)
    """Plays of one evaluation, in arenas that cannot be evaluated exactly. The arena's tasks are
    repeated where there are fewer. Raise it for less noise."""
    evaluation_temperature: float | None = knob(None, ge=0, le=10)
    """Sampling temperature of evaluation plays; 0: the most probable token; none: the temperature
    of training."""
    plays_kept: float = knob(0.05, ge=0, le=1)
    """Share of the tasks of each step whose plays are written to episodes.jsonl, besides all that
    failed, the longest, the best and the worst. Raise it to see more of the play."""
    plays_disk_gib: float = knob(1.0, unit="GiB", ge=0)
    """Disk space of the plays of a run; the oldest go first. 0: no play is written."""
    keep_awake: bool = knob(True)
    """Keep macOS from sleeping while the run goes on (caffeinate -is); its display may sleep."""
    serve_port: int | None = knob(None, ge=0, le=65535)
    """Port of 127.0.0.1 at which the policy can be asked while it trains, and at which programs
    start the episodes of the arena programs; 0: a free port; none: no server."""


class TrackConfig(Settings):
    """Where metrics go besides metrics.jsonl."""

    console: bool = knob(True)
    """Show a table of metrics in the terminal."""
    wandb: Literal["off", "auto", "online", "offline"] = knob("off")
    """Log to Weights & Biases; auto: online where an API key is configured, otherwise offline. The
    project is legos, or WANDB_PROJECT."""
    trackio: bool = knob(False)
    """Log to trackio, if it is installed. The project is legos, or TRACKIO_PROJECT."""
    tags: tuple[str, ...] = knob((), loose=True)
    """Label of the run in Weights & Biases; may be repeated."""
    notes: str | None = knob(None)
    """A text that is shown with the run there."""
    group: str | None = knob(None)
    """Runs of one group are shown together there and in trackio."""
    entity: str | None = knob(None)
    """User or team of Weights & Biases to which the run belongs; none: that of the API key."""


class RunConfig(Settings):
    """One run: a model, an arena, and the settings of every part."""

    model: str = knob("builtin")
    """Model folder, hub name, or builtin."""
    device: Literal["mlx", "torch"] = knob("mlx")
    """Library that trains; torch, on CUDA or the CPU, needs the extra torch and a server that
    generates."""
    arena: str = knob("nim")
    """An arena's name, path/to/file.py:Class, or package.module:Class."""
    mix: dict[str, MixedArena] = knob({})
    """Several arenas, each with its share and its settings of play (--mix NAME=SHARE)."""
    engine: Literal["device", "vllm"] = knob("device")
    """What generates, where no server is given: an engine of the device in this process, or vLLM
    (LEGOS_VLLM_BIN, or vllm on PATH), which the run starts as a process of its own."""
    server: tuple[str, ...] = knob((), loose=True)
    """Address of a running server that generates, such as http://localhost:8000: `legos serve` or
    vLLM; several of one kind share the work. An API key is read from LEGOS_API_KEY."""
    adapter_folder: Path | None = knob(None, loose=True)
    """Folder in which vLLM servers read adapters, which they see under the same path; none: this
    machine's folder for temporary files."""
    ray: str | None = knob(None)
    """Ray cluster that plays and generates: local for one of this machine alone, auto for the one
    that runs on it, or HOST:PORT; none: this process."""
    players: int = knob(1, ge=0)
    """Processes of the cluster that play; 0: plays run in this process."""
    engines: int | None = knob(None, ge=1)
    """Engines of the cluster; none: one, unless server is given."""
    out: Path | None = knob(None, loose=True)
    """Run folder; none: a new one under runs/."""
    seed: int = knob(0, ge=0, lt=2**32)
    """Seed of every random draw of the run."""
    adapter: str | None = knob(None)
    """Adapter to start from: RUN, RUN@STEP, RUN@best or a folder; none: new LoRA."""
    fork_from: str | None = knob(None)
    """Checkpoint of another run to start from, as RUN@STEP; none: start from the model."""
    training: TrainingConfig = knob(TrainingConfig())
    """The optimiser step."""
    generation: GenerationConfig = knob(GenerationConfig())
    """Sampling."""
    play: PlayConfig = knob(PlayConfig())
    """Playing the arena."""
    league: LeagueConfig = knob(LeagueConfig())
    """Snapshots of the policy as its opponents."""
    loop: LoopConfig = knob(LoopConfig())
    """The run as a whole."""
    track: TrackConfig = knob(TrackConfig())
    """Trackers of metrics."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_together(self, EXCLUSIVE, NEEDED)
        if self.device == "torch" and not self.remote_engine:
            raise ConfigError(
                "device is torch but server is empty; torch trains and does not generate: start a "
                "server of the model (legos serve) and give its address, set engine to vllm, or "
                "set device to mlx"
            )
        self._check_mix()
        training = self.training
        for name, one in self.arenas.items():
            check_play(one.play, training, f"mix.{name}" if self.mix else "play")
            if training.kl_server and one.generation.temperature != 1.0:
                raise ConfigError(
                    f"training.kl_server is {training.kl_server[0]!r} but {name} is sampled at "
                    f"temperature {one.generation.temperature:g}, and servers score tokens at 1; "
                    "set generation.temperature to 1, or leave kl_server out"
                )
        return self

    def _check_mix(self) -> None:
        """Refuse shares that do not add up, and settings that a mix does not read."""
        names = ", ".join(self.mix)
        if self.mix and "arena" in self.model_fields_set:
            raise ConfigError(f"arena is {self.arena!r} but mix names {names}; give one of them")
        if self.mix and self.ray is not None and self.players:
            raise ConfigError(
                f"players is {self.players} but mix names {names}; players on a Ray cluster play "
                "one arena: set players to 0, so that plays run in this process"
            )
        check_shares({name: one.share for name, one in self.mix.items()}, "in the mix")
        for name, one in self.mix.items():
            if "concurrency" in one.model_fields_set:
                raise ConfigError(
                    f"mix.{name}.concurrency is {one.concurrency}, but all arenas have the same "
                    "number of simultaneous plays; set play.concurrency"
                )

    @property
    def arenas(self) -> "Mapping[str, PlayedArena]":
        """Each arena of the run, as ``arena`` and ``mix`` name it -> its settings."""
        if not self.mix:
            return {self.arena: PlayedArena(self.play, self.generation, 1.0)}
        return {name: self._played(one) for name, one in self.mix.items()}

    def for_evaluation(self) -> Self:
        """A copy without the settings of play that training alone reads, in each arena."""
        mix = {name: one.for_evaluation() for name, one in self.mix.items()}
        return self.replace(play=self.play.for_evaluation(), mix=mix)

    def _played(self, one: MixedArena) -> "PlayedArena":
        own = {"temperature": one.temperature, "max_tokens": one.max_tokens}
        sampling = {name: value for name, value in own.items() if value is not None}
        return PlayedArena(one.over(self.play), self.generation.replace(**sampling), one.share)

    @property
    def title(self) -> str:
        """The arena, or the arenas of the mix, for people."""
        return "+".join(self.arenas)

    @property
    def remote_engine(self) -> bool:
        """Whether another process generates."""
        return bool(self.server) or self.engine == "vllm" or self.ray is not None


class PlayedArena(NamedTuple):
    """The settings of one arena of a run."""

    play: PlayConfig
    generation: GenerationConfig
    share: float

"""Make a trainer with its backend, engine and publisher from the configuration."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from legos.clients.engine import EngineClient
from legos.clients.pool import all_done
from legos.config.schema import RunConfig, TrainingConfig
from legos.device import LocalEngine, ModelHandle
from legos.errors import AdapterError, CheckpointError, ConfigError
from legos.league.matchmaker import EXPLOITER, LeagueSeats
from legos.loop.trainer import PolicyTrainer
from legos.records.limits import EngineLimits, TrainingSize
from legos.records.names import POLICY
from legos.records.numbers import shown
from legos.records.step import BackendConfig
from legos.remote.legos_server import LegosServer
from legos.remote.publish.engine import EnginePublisher, ManyPublishers
from legos.run.find import adapter_of, find_adapter
from legos.run.folder import RunFolder
from legos.weights.adapter import Adapter, AdapterInfo, checked_name
from legos.weights.base import check_base, fingerprint_of
from legos.weights.folder import is_adapter_folder, read_adapter
from legos.wiring.arena import policies_of
from legos.wiring.device import find_device
from legos.wiring.elsewhere import elsewhere, engine_at
from legos.wiring.engines import MakeEngine, TokenEngine
from legos.wiring.model import MOST_LAYERS, apply_adapter, apply_lora, check_loaded, model_place
from legos.wiring.named import frozen_adapters
from legos.wiring.references import reference_servers
from legos.wiring.serving import both_named

logger = logging.getLogger(__name__)


class Trainer(PolicyTrainer):
    """A trainer with the backend, the engine and the publisher of one model.

    Attributes:
        model: handle of the model.
        generation: the engine, in this process or elsewhere; it generates with the adapter that
            was published last.
    """

    def __init__(
        self,
        *,
        model: ModelHandle,
        config: TrainingConfig | None = None,
        limits: EngineLimits | None = None,
        generation: MakeEngine | str | None = None,
        policies: Sequence[str] = (POLICY,),
        seed: int = 0,
        start: Adapter | None = None,
        restored: bool = False,
        tell: Callable[[str], None] | None = None,
        api_key: str | None = None,
    ) -> None:
        """Make the backend, and the engine if none is given.

        Args:
            model: the model; LoRA is added as ``config`` says, unless it has LoRA already.
            config: settings of training.
            limits: limits of the engine that is made; None: the defaults, within the memory of
                ``config``.
            generation: address of a running server (``legos serve`` or vLLM) with the same model,
                or what makes an engine elsewhere for the model with LoRA; None: an engine of the
                model's device, in this process.
            policies: names of the adapters to train, each with its own optimiser; an arena lists
                its own in ``Arena.policies``.
            seed: seed of the first matrix of each LoRA pair.
            start: adapter that every policy starts from, as version 0, with its rank and modules;
                None: LoRA as ``config`` says, which changes nothing.
            restored: whether a checkpoint is restored next. It contains the adapter of
                ``kl_reference``, whose folder is then not needed.
            tell: receives the memory plan before the first step; None: it is logged.
            api_key: API key of the servers of ``kl_server``, and of ``generation`` if it is an
                address.

        Raises:
            AdapterError: the adapter of ``kl_reference`` does not exist, or does not fit, or
                ``start`` does not.
            ModelError: no engine is given and the model's device has none; or the server has
                another model, or one of ``kl_server`` cannot score its tokens.
            EngineError: the server does not answer.
        """
        check_loaded(model)
        config = TrainingConfig() if config is None else config
        if not isinstance(config, TrainingConfig):
            raise ConfigError(f"config is {shown(config)}; expected TrainingConfig(...)")
        if start is not None:
            with both_named(start, str(model.folder)):
                apply_adapter(model, start)
        elif model.lora is None:
            apply_lora(
                model,
                rank=config.lora_rank,
                layers=config.lora_layers,
                alpha=config.lora_alpha,
                seed=seed,
            )
        self.model = model
        self._base = {"model": str(model.folder), "fingerprint": fingerprint_of(model.folder)}
        with ExitStack() as stack:  # an error leaves no engine behind
            self._references = reference_servers(config, model, api_key=api_key)
            if self._references is not None:
                stack.callback(self._references.close)
            settings = backend_config(config, restored=restored, report=tell)
            limits = limits or EngineLimits(memory_bytes=settings.memory_limit_bytes)
            if isinstance(generation, str):
                generation = engine_at([generation], policies, api_key=api_key)
            self.generation = (
                TokenEngine(model.make_engine(limits), model)
                if generation is None
                else generation(model)
            )
            stack.callback(self.generation.close)
            super().__init__(
                model.make_backend(replace(settings, policies=tuple(policies))),
                EnginePublisher(self.engine),
                config.for_model(model.folder, model.dtype),
                policies=policies,
                select=config.selection(model.num_vocabulary),
                references=self._references,
            )
            stack.pop_all()

    async def publish_weights(
        self, urls: str | Sequence[str] | None = None, *, api_key: str | None = None
    ) -> AdapterInfo:
        """Publish the newest adapter to this process's engine, or to servers.

        Args:
            urls: addresses of one or several servers (``legos serve``); None: the targets of the
                training loop.
            api_key: API key of the servers.

        Returns:
            Name, version and digest of the adapter, after every server has acknowledged it.

        Raises:
            AdapterError: a server refuses the adapter.
            EngineError: a server cannot be reached, or reports another live adapter afterwards.
        """
        if urls is None:
            return await super().publish_weights()
        given = [urls] if isinstance(urls, str) else urls
        servers = [LegosServer(url, api_key=api_key) for url in given]
        try:
            return await self.publish_to(ManyPublishers(servers))
        finally:
            await all_done(server.aclose() for server in servers)

    def state(self) -> dict[str, Any]:
        """The state outside the backend, and which base model it belongs to."""
        return {**super().state(), "base": self._base}

    def restore(self, folder: Path, state: Mapping[str, Any]) -> None:
        """Restore what ``save`` wrote and returned.

        Raises:
            CheckpointError: it belongs to another base model or LoRA.
        """
        check_base(state["base"], self._base, folder)
        super().restore(folder, state)

    def load_adapter(self, folder: str | Path, *, name: str) -> AdapterInfo:
        """Load a saved adapter into the engine, for seats that name it.

        Args:
            folder: an adapter folder such as ``runs/nim-1/adapters/v500``, or one in PEFT's format.
            name: name of the adapter, for ``Seat.adapter``.

        Raises:
            AdapterError: it cannot be read, does not fit the model, or has the policy's name or one
                that no request can have.
        """
        if name in self.policies:
            raise AdapterError(
                f"adapter {name!r} is being trained here; load yours as another name"
            )
        adapter = replace(read_adapter(Path(folder)), name=checked_name(name))
        return self.engine.load_adapter(adapter).result()

    def opponents(
        self, league: LeagueSeats, policies: Sequence[str]
    ) -> Mapping[tuple[str, str], Adapter]:
        """The adapters of opponents that the engine lacks, by opponent and policy.

        Raises:
            CheckpointError: one is not found; or snapshots of an earlier process are missing.
            AdapterError: one is damaged, or the run keeps none of a policy.
        """
        live = self.engine.adapters()
        if gone := [one.name for one in league.pool.in_engines if one.live not in live]:
            raise CheckpointError(
                f"snapshots {', '.join(gone)} of the league are not in the engine, and a script "
                "keeps them in no file; make the arena again, or resume a run of `legos train`"
            )
        known = {*live, *(who for who, _ in league.cast.live)}
        found: dict[tuple[str, str], Adapter] = {}
        trained = [name for name in policies if name != EXPLOITER]
        for name in league.named:
            if name in known:
                continue
            try:
                frozen = frozen_adapters(name, trained)
            except CheckpointError as error:
                raise CheckpointError(
                    f"play.opponents names {name!r}, which is neither live in the engine nor found "
                    f"({error}); load it by trainer.load_adapter(FOLDER, name='old'), and name "
                    "it 'old' in play.opponents"
                ) from error
            found |= {(name, policy): adapter for policy, adapter in frozen.items()}
        return found

    @property
    def engine(self) -> LocalEngine:
        """The engine that takes token ids."""
        return self.generation.engine

    def client(self) -> EngineClient:
        """A client of the engine."""
        return self.generation.client()

    async def tokens_generated(self, policy: str = POLICY) -> int:
        """Number of tokens that the engine has sampled for a policy.

        Tokens of other adapters belong to opponents that are not trained, so no ledger counts them.

        Raises:
            EngineError: the engine has died or was closed.
        """
        return await asyncio.wrap_future(self.engine.tokens_generated(policy))

    def close(self) -> None:
        """Stop the threads of the engine and of the model."""
        if self._references is not None:
            self._references.close()
        self.generation.close()
        self.model.close()


def start_of(config: RunConfig, run: RunFolder | None) -> Path | None:
    """Folder of the adapter whose shape a run has; None: ``training`` has the shape.

    Args:
        config: settings of the run.
        run: the run that is continued, or forked; it may have outlived the first adapter.

    Raises:
        CheckpointError: there is no such adapter.
    """
    if config.adapter is None:
        return None
    return find_adapter(config.adapter) if run is None else adapter_of(run)


def trainer_of(
    config: RunConfig,
    *,
    inline: bool,
    start: Path | None = None,
    restored: bool = False,
    tell: Callable[[str], None] | None = None,
    api_key: str | None = None,
) -> Trainer:
    """Load a run's model and make its trainer.

    Args:
        config: settings of the run.
        inline: run the model and its engine on the calling thread.
        start: folder of the adapter to start from; None: new LoRA.
        restored: whether a checkpoint is restored next.
        tell: receives the memory plan before the first step; None: it is logged.
        api_key: API key of the run's servers.

    Raises:
        AdapterError: the adapter of ``kl_reference`` does not exist, does not fit, or is one of
            another model.
        ModelError: the model cannot be loaded, a server has another one, or its chat template has
            no variable for ``thinking``.
        EngineError: a server does not answer.
        ConfigError: ``max_tokens`` exceeds the model's context.
    """
    device = find_device(config.device)
    policies = policies_of(config.arenas)
    first = None if start is None else read_adapter(start)
    if first is not None:
        first.check_base(config.model)
    other = config.training.kl_reference
    if other is not None and (not restored or is_adapter_folder(other)):  # or a checkpoint has it
        read_adapter(other).check_base(config.model)
    say = tell or logger.info
    if start is not None and len(policies) > 1 and not restored:
        say(f"every policy ({', '.join(policies)}) starts from one adapter, {start}")
    generation = elsewhere(config, policies, api_key, say)
    model = device.load(
        model_place(config.model),
        inline=inline,
        training=_size(config, len(policies), first),
        report=say,
    )
    with ExitStack() as stack:
        stack.callback(model.close)
        thinking = config.generation.thinking
        if thinking is None and model.tokenizer.thinks:
            thinking = "off"
            say("prompts ask the model not to think first; let it with --generation.thinking on")
        model.tokenizer = model.tokenizer.with_thinking(thinking or "default")
        longest = max(one.generation.max_tokens or 0 for one in config.arenas.values())
        if longest >= model.context:
            raise ConfigError(
                f"generation.max_tokens is {longest} but model {config.model!r} has a context of "
                f"{model.context} tokens for prompt and completion together; give a smaller number"
            )
        made = Trainer(
            model=model,
            config=config.training,
            limits=config.generation.limits(config.training.memory_limit_gib),
            generation=generation,
            policies=policies,
            seed=config.seed,
            start=first,
            restored=restored,
            tell=tell,
            api_key=api_key,
        )
        stack.pop_all()
        return made


def _size(config: RunConfig, policies: int, first: Adapter | None) -> TrainingSize:
    """What the memory of training depends on."""
    training, backend = config.training, backend_config(config.training)
    return TrainingSize(
        rank=training.lora_rank if first is None else first.shape.rank,
        layers=training.lora_layers if first is None else first.shape.num_layers and MOST_LAYERS,
        before=0 if first is None else first.first_layer or 0,
        micro_batch_tokens=backend.micro_batch_tokens,
        checkpointing=backend.gradient_checkpointing,
        others=bool(training.kl_coef and not training.kl_server) + bool(training.ema_kl_coef),
        policies=policies,
        limit_bytes=backend.memory_limit_bytes,
        engine=None
        if config.remote_engine
        else config.generation.limits(training.memory_limit_gib),
    )


def backend_config(
    config: TrainingConfig, *, restored: bool = False, report: Callable[[str], None] | None = None
) -> BackendConfig:
    """The backend's settings, from the settings of training."""
    limit = config.memory_limit_gib
    return BackendConfig(
        micro_batch_tokens=config.micro_batch_tokens,
        gradient_checkpointing=config.gradient_checkpointing,
        reference=config.kl_reference,
        restored=restored,
        memory_limit_bytes=None if limit is None else int(limit * (1 << 30)),
        pass_limit_s=config.decode_pause_s,
        report=report,
    )

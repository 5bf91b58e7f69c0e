"""Engines and players on a Ray cluster, from the configuration.

What runs in other processes is made there by the functions of this file, from the settings of the
run: a model by its name, an arena by its name or by the text of its file.
"""

import asyncio
import math
import os
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from legos.arena.arena import Arena
from legos.chat.tokenizer import ChatTokenizer, load_tokenizer
from legos.chat.tools import ToolFormat
from legos.clients.engine import EngineClient
from legos.clients.remote import RemoteEngine
from legos.clients.served import LegosServer
from legos.config.schema import RunConfig
from legos.device import LocalEngine, ModelHandle
from legos.errors import ConfigError
from legos.loop.player import PlayGroup
from legos.play.step import play_each
from legos.remote.ray.arena_file import TravellingArena
from legos.weights.adapter import LoraShape
from legos.weights.model_folder import resolve_folder
from legos.wiring.arena import make_arena
from legos.wiring.device import find_device
from legos.wiring.engines import TokenEngine, kind_of
from legos.wiring.machine import quiet_collector, share_cores
from legos.wiring.model import model_place

__all__ = ["ray_engine", "ray_players"]


def ray_engine(
    config: RunConfig, model: ModelHandle, *, say: Callable[[str], object]
) -> TokenEngine:
    """Start the engines of a run on its cluster.

    Args:
        config: settings of the run.
        model: the trainer's model, with LoRA that still changes nothing.
        say: receives what is started.

    Raises:
        ConfigError: Ray is not installed, or a node has another version of the kit.
        EngineError: the cluster does not answer.
        ModelError: the model cannot be loaded on a node.
    """
    from legos.remote.ray.engine import RayEngine
    from legos.remote.ray.start import start_engines

    with ExitStack() as stack:
        nodes = _connected(config, stack)
        num = config.engines or 1
        say(f"starting {num} engines on the Ray cluster {config.ray!r}")
        assert model.lora is not None
        parts = 1 + math.ceil(num / nodes)  # of a node: its engines, and a player or the trainer
        engines = start_engines(partial(_engine_there, config, model.lora, parts), num)
        return TokenEngine(RayEngine(engines, owner=True), model, closing=stack.pop_all().close)


@contextmanager
def ray_players(
    config: RunConfig, generation: TokenEngine, model: ModelHandle
) -> Generator[PlayGroup]:
    """Within the block, a function plays groups: on the cluster if the settings say so, or here.

    Raises:
        ConfigError: Ray is not installed, a node has another version of the kit, or players cannot
            ask the engine.
        EngineError: the cluster does not answer.
        ArenaError: the arena cannot be made on a node.
    """
    if config.ray is None or not config.players:
        yield play_each
        return
    from legos.remote.ray.players import Players
    from legos.remote.ray.start import start_players

    with ExitStack() as stack:
        engines = _engines_of(config, generation.engine)
        if not engines:  # otherwise they have connected, and their nodes are checked
            _connected(config, stack)
        place = _PlayPlace(
            config=config,
            arena=TravellingArena.of(config.arena),
            engines=engines,
            limits=(model.num_vocabulary, model.context),
            tool_format=model.tool_format,
        )
        plays = config.play.concurrency * config.loop.step_concurrency
        actors = start_players(place.make, config.players, concurrency=-(-plays // config.players))
        players = Players(actors)
        stack.callback(players.close)
        yield players.play


def _connected(config: RunConfig, stack: ExitStack) -> int:
    """Connect to the cluster of the settings; returns its number of nodes.

    The stack closes the connection.
    """
    from legos.remote.ray.cluster import check_nodes, connect, disconnect

    assert config.ray is not None
    if connect(config.ray):
        stack.callback(disconnect)
    return check_nodes()


def _engines_of(config: RunConfig, engine: LocalEngine) -> tuple[str, ...]:
    """Names of the Ray actors that generate; none where servers do.

    Raises:
        ConfigError: another process cannot ask the servers.
    """
    from legos.remote.ray.engine import RayEngine

    if isinstance(engine, RayEngine):
        return engine.names
    if asyncio.run(kind_of(config.server[0], api_key=os.environ.get("LEGOS_API_KEY"))) != "legos":
        raise ConfigError(
            f"players is {config.players} but server {config.server[0]!r} is not `legos serve`; "
            "only the trainer's process knows which adapters such a server has: set players to 0"
        )
    return ()


def _engine_there(
    config: RunConfig, shape: LoraShape, parts: int
) -> tuple[LocalEngine, ChatTokenizer]:
    """Load the model on this node, with LoRA of the trainer's shape, and make an engine.

    Args:
        config: settings of the run.
        shape: the trainer's LoRA.
        parts: the number of parts of the run that compute on this node.
    """
    share_cores(parts)
    model = find_device().load(model_place(config.model))
    model.add_lora(shape)
    limits = config.generation.limits(config.training.memory_limit_gib)
    engine = model.make_engine(limits, watched=True)
    quiet_collector()
    return engine, model.tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlayPlace:
    """What a player on another node needs to make its arena."""

    config: RunConfig
    arena: TravellingArena
    engines: tuple[str, ...]  # names of Ray actors; none: the servers of the settings generate
    tool_format: ToolFormat
    limits: tuple[int, int]  # vocabulary and context of the model

    def make(self) -> Arena:
        """Make the arena and its client in this process."""
        from legos.remote.ray.engine import RayEngine
        from legos.remote.ray.start import engines_named

        config = self.config
        engine = (
            RayEngine(engines_named(self.engines), owner=False) if self.engines else self._served()
        )
        client = EngineClient(
            engine,
            load_tokenizer(resolve_folder(model_place(config.model))),
            tool_format=lambda: self.tool_format,
            context=self.limits[1],
        )
        arena = make_arena(
            self.arena.here(),
            client,
            play=config.play,
            generation=config.generation,
            seed=config.seed,
        )
        quiet_collector()
        return arena

    def _served(self) -> LocalEngine:
        """The servers of the settings, into which this process loads no adapter."""
        key = os.environ.get("LEGOS_API_KEY")
        vocabulary, context = self.limits
        servers = [LegosServer(url, api_key=key) for url in self.config.server]
        return RemoteEngine(servers, None, num_vocabulary=vocabulary, context=context)

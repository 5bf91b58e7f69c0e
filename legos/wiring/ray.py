"""Servers and players on a Ray cluster, from the configuration.

What runs in other processes is made there from the settings of the run: a model by its name, an
arena, a matchmaker and bots by their names or by the texts of their files.
"""

import asyncio
import math
import os
import secrets
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING

from legos.arena.matchmaker import SeatOverride, renamed
from legos.arena.registry import is_arena_file
from legos.chat.load import load_tokenizer
from legos.chat.tools import ToolFormat
from legos.clients.engine import EngineClient
from legos.config.schema import RunConfig
from legos.device import ModelHandle
from legos.errors import ConfigError
from legos.league.cast import Cast, is_own_bot
from legos.league.matchmaker import LeagueSeats
from legos.machine import blas_environment, quiet_collector
from legos.records.message import Thinking
from legos.remote.engine import RemoteEngine, RemoteServer
from legos.remote.legos_server import LegosServer
from legos.remote.process import serve_command
from legos.remote.publish.broadcast import Broadcaster
from legos.remote.ray.arena_file import TravellingFiles
from legos.weights.model_folder import resolve_folder
from legos.wiring.arena import make_arena
from legos.wiring.engines import TokenEngine
from legos.wiring.model import model_place
from legos.wiring.rivals import rivals_of
from legos.wiring.same_model import check_same_model

if TYPE_CHECKING:
    from legos.remote.ray.players import MadeArena, Players

ADAPTERS = 64  # that an engine may have, besides opponents


def ray_engine(
    config: RunConfig, model: ModelHandle, *, say: Callable[[str], object]
) -> TokenEngine:
    """Start the servers of a run on its cluster.

    Args:
        config: settings of the run.
        model: the trainer's model, with LoRA.
        say: receives what is started.

    Raises:
        ConfigError: Ray is not installed, or a node has another version of legos.
        EngineError: the cluster does not answer, or a server does not start.
        ModelError: a server has another model.
    """
    from legos.remote.ray.cluster import end, started
    from legos.remote.ray.servers import PlacedServer, ServerActor

    with ExitStack() as stack:
        nodes = _connected(config, stack)
        num = config.engines or 1
        say(f"starting {num} engines on the Ray cluster {config.ray!r}")
        parts = 1 + math.ceil(num / nodes)  # of a node: its engines, and a player or the trainer
        key = secrets.token_urlsafe()
        options: dict[str, object] = {
            "max-batch": config.generation.max_batch,
            "max-adapters": ADAPTERS + rivals_of(config),
        }
        if config.training.memory_limit_gib is not None:
            options["memory-limit-gib"] = config.training.memory_limit_gib
        command = partial(serve_command, config.model, options)
        environment = partial(blas_environment, parts)
        placed = started(ServerActor, num, key, command, environment, use_gpus=True)
        stack.callback(end, [actor for _, actor, _ in placed])
        servers = [PlacedServer(place, url, api_key=key) for place, _, url in placed]
        names = [f"engine-{number}" for number in range(num)]
        broadcaster = Broadcaster(zip(names, servers, strict=True))
        engine = RemoteEngine(servers, broadcaster)
        stack.callback(engine.close)
        check_same_model(engine, model, where="an engine of the Ray cluster")
        for index, server in enumerate(servers):
            engine.call(server.keep_loaded(partial(broadcaster.reload, index)))
        return TokenEngine(engine, model, closing=stack.pop_all().close)


@contextmanager
def ray_players(
    config: RunConfig,
    generation: TokenEngine,
    model: ModelHandle,
    *,
    seated: Mapping[str, str] | None = None,
    opponents: Mapping[tuple[str, str], str] | None = None,
) -> "Generator[Players | None]":
    """Within the block, players on the cluster play groups; None: the settings name none.

    Args:
        config: settings of the run.
        generation: the engine.
        model: the trainer's model.
        seated: name of an adapter as seats have it -> its name in the engine.
        opponents: the same for opponents of a league, as ``Cast.live``.

    Raises:
        ConfigError: Ray is not installed, a node has another version of legos, or players cannot
            ask the engine.
        EngineError: the cluster does not answer.
        ArenaError: the arena cannot be made on a node.
    """
    if config.ray is not None:  # evaluations, or all plays, are in this process
        _let_files_travel()
    if config.ray is None or not config.players:
        yield None
        return
    from legos.remote.ray.cluster import started
    from legos.remote.ray.players import PlayerActor, Players
    from legos.remote.ray.servers import PlacedServer

    with ExitStack() as stack:
        assert isinstance(generation.engine, RemoteEngine)
        servers = generation.engine.servers
        placed = [server for server in servers if isinstance(server, PlacedServer)]
        if not placed:
            _keep_loaded(config.players, generation.engine)
            _connected(config, stack)  # otherwise it is
        place = _PlayPlace(
            config=config,
            files=_files_of(config),
            places=[server.place for server in placed],
            api_key=placed[0].api_key if placed else os.environ.get("LEGOS_API_KEY"),
            seated=seated or {},
            opponents=opponents or {},
            opponents_key=os.environ.get("LEGOS_API_KEY"),
            context=model.context,
            tool_format=model.tool_format,
            thinking=model.tokenizer.thinking,
        )
        plays = config.play.concurrency * config.loop.step_concurrency
        actors = started(PlayerActor, config.players, place.make, -(-plays // config.players))
        players = Players([actor for _, actor, _ in actors])
        stack.callback(players.close)
        yield players


def _connected(config: RunConfig, stack: ExitStack) -> int:
    """Connect to the cluster of the settings; returns its number of nodes.

    The stack closes the connection.
    """
    from legos.remote.ray.cluster import check_nodes, connect, disconnect

    assert config.ray is not None
    if connect(config.ray):
        stack.callback(disconnect)
    return check_nodes()


def _files_of(config: RunConfig) -> TravellingFiles:
    """The files of the user in which what plays is.

    Raises:
        ArenaError: one cannot be read.
    """
    play = config.play
    bots = filter(is_own_bot, (*play.opponents, *play.opponents_end))
    return TravellingFiles.of((config.arena, play.matchmaker or "", *bots))


def _let_files_travel() -> None:
    """Send classes of arenas' files whole: no other process can import them by their names."""
    from legos.remote.ray.library import ray

    for module in [*sys.modules.values()]:
        if isinstance(module, ModuleType) and is_arena_file(module):
            ray.cloudpickle.register_pickle_by_value(module)


def _keep_loaded(players: int, engine: RemoteEngine) -> None:
    """Load adapters again that a server has lost, since players cannot.

    Raises:
        ConfigError: only the trainer's process knows the adapters of a server.
    """
    for server in engine.servers:
        if not isinstance(server, LegosServer):
            raise ConfigError(
                f"players is {players} but server {server.name!r} is not `legos serve`; only the "
                "trainer's process knows which adapters such a server has: set players to 0"
            )
        engine.call(server.keep_loaded())


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlayPlace:
    """What a player on another node needs to make its arena."""

    config: RunConfig
    files: TravellingFiles
    places: Sequence[str]  # of servers on the cluster; empty: those of the settings generate
    api_key: str | None
    seated: Mapping[str, str]  # name of an adapter as seats have it -> its name in the engine
    opponents: Mapping[tuple[str, str], str]  # as ``Cast.live``
    opponents_key: str | None  # API key of opponents that are servers
    tool_format: ToolFormat
    thinking: Thinking  # that prompts ask for
    context: int  # of the model, in tokens

    def make(self) -> "MadeArena":
        """Make the arena and its client in this process."""
        self.files.load()
        config, engine = self.config, RemoteEngine(self._servers(), None)
        tokenizer = load_tokenizer(resolve_folder(model_place(config.model)))
        client = EngineClient(
            engine,
            tokenizer.with_thinking(self.thinking),
            tool_format=lambda: self.tool_format,
            context=self.context,
        )
        arena = make_arena(
            config.arena,
            client,
            play=config.play.replace(credit=None),  # which the trainer gives
            generation=config.generation,
            league=config.league,
            seed=config.seed,
        )
        if isinstance(arena.matchmaker, LeagueSeats):
            key = self.opponents_key
            arena.matchmaker.cast = Cast(arena, live=self.opponents, api_key=key)
        if self.seated:
            arena.matchmaker = SeatOverride(partial(renamed, self.seated), arena.matchmaker)
        _let_files_travel()
        quiet_collector()

        async def sampled() -> int:
            counts = [engine.tokens_generated(name) for name in arena.policies]
            return sum([await asyncio.wrap_future(count) for count in counts])

        return arena, sampled

    def _servers(self) -> "Sequence[RemoteServer]":
        """The servers, into which this process loads no adapter."""
        if not self.places:
            return [LegosServer(url, api_key=self.api_key) for url in self.config.server]
        from legos.remote.ray.library import ray
        from legos.remote.ray.servers import PlacedServer

        actors = map(ray.get_actor, self.places)
        urls = ray.get([actor.address.remote() for actor in actors])
        return [
            PlacedServer(place, url, api_key=self.api_key or "")
            for place, url in zip(self.places, urls, strict=True)
        ]

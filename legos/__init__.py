"""Self-play reinforcement learning with LoRA for language models, on the machine at hand."""

import ast
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the public names: the one list of them, which type checkers read too
    from legos.arena.answer import Reply as Reply
    from legos.arena.arena import Arena as Arena
    from legos.arena.arena import GameArena as GameArena
    from legos.arena.curriculum import Climb as Climb
    from legos.arena.curriculum import Uniform as Uniform
    from legos.arena.endings import Draw as Draw
    from legos.arena.endings import Forfeit as Forfeit
    from legos.arena.endings import Void as Void
    from legos.arena.game import Game as Game
    from legos.arena.rows import hold_out as hold_out
    from legos.arena.rows import read_tasks as read_tasks
    from legos.clients.openai import OpenAIClient as OpenAIClient
    from legos.clients.workers import Workers as Workers
    from legos.config.schema import TrainingConfig as TrainingConfig
    from legos.credit import make_credit as make_credit
    from legos.credit.gae import GAECredit as GAECredit
    from legos.credit.group import DrGRPOCredit as DrGRPOCredit
    from legos.credit.group import GRPOCredit as GRPOCredit
    from legos.credit.group import RLOOCredit as RLOOCredit
    from legos.credit.hierarchical import HierarchicalCredit as HierarchicalCredit
    from legos.credit.imitated import ImitationCredit as ImitationCredit
    from legos.credit.joint import JointCredit as JointCredit
    from legos.credit.maxrl import MaxRLCredit as MaxRLCredit
    from legos.credit.overlong import OverlongPenalty as OverlongPenalty
    from legos.credit.role import RAECredit as RAECredit
    from legos.credit.turns import TurnCredit as TurnCredit
    from legos.credit.views import SameViewCredit as SameViewCredit
    from legos.credit.whitened import ReinforcePPCredit as ReinforcePPCredit
    from legos.errors import RunError as RunError
    from legos.loop.loop import synchronous_training_loop as synchronous_training_loop
    from legos.loop.loop import training_loop as training_loop
    from legos.loop.mix import Mix as Mix
    from legos.play.one_task import play_task as play_task
    from legos.play.table import Table as Table
    from legos.protocols import Client as Client
    from legos.protocols import Curriculum as Curriculum
    from legos.protocols import Matchmaker as Matchmaker
    from legos.protocols import RewardModel as RewardModel
    from legos.protocols import Seat as Seat
    from legos.records.episode import Episode as Episode
    from legos.records.episode import Task as Task
    from legos.records.message import Completion as Completion
    from legos.records.message import Message as Message
    from legos.records.message import Sampling as Sampling
    from legos.wiring.arena import make_arena as make_arena
    from legos.wiring.evaluate import evaluate as evaluate
    from legos.wiring.model import apply_lora as apply_lora
    from legos.wiring.model import disable_lora as disable_lora
    from legos.wiring.model import load_model as load_model
    from legos.wiring.trainer import Trainer as Trainer


def _public_names() -> dict[str, str]:
    """Name -> module that defines it, as the imports above list them."""
    assert __spec__ is not None
    source: str = __spec__.loader.get_source(__name__)  # pyright: ignore
    (listed,) = (node for node in ast.parse(source).body if isinstance(node, ast.If))
    imports = (node for node in listed.body if isinstance(node, ast.ImportFrom))
    return {alias.name: str(node.module) for node in imports for alias in node.names}


_HOMES = _public_names()
__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Import a public name's home when it is first asked for, so that ``import legos`` is quick."""
    if name not in _HOMES:
        raise AttributeError(f"module 'legos' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The public names, for completion in notebooks."""
    return __all__

"""Self-play reinforcement learning with LoRA for language models, on the machine at hand."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from legos.arena.answer import Reply
    from legos.arena.arena import Arena, GameArena
    from legos.arena.curriculum import Climb, Uniform
    from legos.arena.endings import Draw, Forfeit, Void
    from legos.arena.game import Game
    from legos.arena.rows import hold_out, read_tasks
    from legos.clients.openai import OpenAIClient
    from legos.clients.workers import Workers
    from legos.config.schema import TrainingConfig
    from legos.credit import make_credit
    from legos.credit.gae import GAECredit
    from legos.credit.group import DrGRPOCredit, GRPOCredit, RLOOCredit
    from legos.credit.hierarchical import HierarchicalCredit
    from legos.credit.joint import JointCredit
    from legos.credit.maxrl import MaxRLCredit
    from legos.credit.overlong import OverlongPenalty
    from legos.credit.role import RAECredit
    from legos.credit.turns import TurnCredit
    from legos.credit.views import SameViewCredit
    from legos.credit.whitened import ReinforcePPCredit
    from legos.errors import RunError
    from legos.loop.loop import synchronous_training_loop, training_loop
    from legos.loop.mix import Mix
    from legos.protocols import Client, Curriculum, Matchmaker, RewardModel, Seat
    from legos.records.episode import Episode, Task
    from legos.records.message import Completion, Message, Sampling
    from legos.wiring.arena import make_arena
    from legos.wiring.evaluate import evaluate
    from legos.wiring.model import apply_lora, disable_lora, load_model
    from legos.wiring.trainer import Trainer

_NAMES = {
    "legos.arena.answer": "Reply",
    "legos.arena.arena": "Arena GameArena",
    "legos.arena.curriculum": "Climb Uniform",
    "legos.arena.endings": "Draw Forfeit Void",
    "legos.arena.game": "Game",
    "legos.play.one_task": "play_task",
    "legos.arena.rows": "hold_out read_tasks",
    "legos.play.table": "Table",
    "legos.clients.openai": "OpenAIClient",
    "legos.clients.workers": "Workers",
    "legos.config.schema": "TrainingConfig",
    "legos.credit.gae": "GAECredit",
    "legos.credit.group": "DrGRPOCredit GRPOCredit RLOOCredit",
    "legos.credit.hierarchical": "HierarchicalCredit",
    "legos.credit.joint": "JointCredit",
    "legos.credit.maxrl": "MaxRLCredit",
    "legos.credit.overlong": "OverlongPenalty",
    "legos.credit": "make_credit",
    "legos.credit.role": "RAECredit",
    "legos.credit.turns": "TurnCredit",
    "legos.credit.views": "SameViewCredit",
    "legos.credit.whitened": "ReinforcePPCredit",
    "legos.records.episode": "Episode Task",
    "legos.records.message": "Completion Message Sampling",
    "legos.errors": "RunError",
    "legos.loop.loop": "synchronous_training_loop training_loop",
    "legos.loop.mix": "Mix",
    "legos.protocols": "Client Curriculum Matchmaker RewardModel Seat",
    "legos.wiring.arena": "make_arena",
    "legos.wiring.evaluate": "evaluate",
    "legos.wiring.model": "apply_lora disable_lora load_model",
    "legos.wiring.trainer": "Trainer",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "Arena",
    "Client",
    "Climb",
    "Completion",
    "Curriculum",
    "DrGRPOCredit",
    "Draw",
    "Episode",
    "Forfeit",
    "GAECredit",
    "GRPOCredit",
    "Game",
    "GameArena",
    "HierarchicalCredit",
    "JointCredit",
    "Matchmaker",
    "MaxRLCredit",
    "Message",
    "Mix",
    "OpenAIClient",
    "OverlongPenalty",
    "RAECredit",
    "RLOOCredit",
    "ReinforcePPCredit",
    "Reply",
    "RewardModel",
    "RunError",
    "SameViewCredit",
    "Sampling",
    "Seat",
    "Table",
    "Task",
    "Trainer",
    "TrainingConfig",
    "TurnCredit",
    "Uniform",
    "Void",
    "Workers",
    "apply_lora",
    "disable_lora",
    "evaluate",
    "hold_out",
    "load_model",
    "make_arena",
    "make_credit",
    "play_task",
    "read_tasks",
    "synchronous_training_loop",
    "training_loop",
]


def __getattr__(name: str) -> Any:
    """Import a public name's home when it is first asked for, so that ``import legos`` is quick."""
    if name not in _HOMES:
        raise AttributeError(f"module 'legos' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The public names, for completion in notebooks."""
    return __all__

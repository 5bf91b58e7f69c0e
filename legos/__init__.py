"""Self-play reinforcement learning with LoRA for language models, on the machine at hand."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from legos.arena.answer import Reply
    from legos.arena.arena import Arena, GameArena
    from legos.arena.endings import Draw, Forfeit, Void
    from legos.arena.game import Game
    from legos.arena.table import Table
    from legos.clients.openai import OpenAIClient
    from legos.config.schema import TrainingConfig
    from legos.credit.group import GRPOCredit, RLOOCredit
    from legos.credit.hierarchical import HierarchicalCredit
    from legos.credit.joint import JointCredit
    from legos.credit.maxrl import MaxRLCredit
    from legos.credit.overlong import OverlongPenalty
    from legos.credit.registry import make_credit
    from legos.credit.role import RAECredit
    from legos.credit.turns import TurnCredit
    from legos.credit.views import SameViewCredit
    from legos.credit.whitened import ReinforcePPCredit
    from legos.data.episode import Episode, Task
    from legos.data.message import Completion, Message, Sampling
    from legos.loop.loop import synchronous_training_loop, training_loop
    from legos.protocols import Client, Matchmaker, Seat
    from legos.wiring.arena import make_arena
    from legos.wiring.evaluate import evaluate
    from legos.wiring.model import apply_lora, disable_lora, load_model
    from legos.wiring.trainer import Trainer

_HOMES = {
    "Arena": "legos.arena.arena",
    "Client": "legos.protocols",
    "Completion": "legos.data.message",
    "Draw": "legos.arena.endings",
    "Episode": "legos.data.episode",
    "Forfeit": "legos.arena.endings",
    "GRPOCredit": "legos.credit.group",
    "Game": "legos.arena.game",
    "GameArena": "legos.arena.arena",
    "HierarchicalCredit": "legos.credit.hierarchical",
    "JointCredit": "legos.credit.joint",
    "MaxRLCredit": "legos.credit.maxrl",
    "Matchmaker": "legos.protocols",
    "Message": "legos.data.message",
    "OpenAIClient": "legos.clients.openai",
    "OverlongPenalty": "legos.credit.overlong",
    "RAECredit": "legos.credit.role",
    "RLOOCredit": "legos.credit.group",
    "ReinforcePPCredit": "legos.credit.whitened",
    "Reply": "legos.arena.answer",
    "SameViewCredit": "legos.credit.views",
    "Sampling": "legos.data.message",
    "Seat": "legos.protocols",
    "Table": "legos.arena.table",
    "Task": "legos.data.episode",
    "Trainer": "legos.wiring.trainer",
    "TrainingConfig": "legos.config.schema",
    "TurnCredit": "legos.credit.turns",
    "Void": "legos.arena.endings",
    "apply_lora": "legos.wiring.model",
    "disable_lora": "legos.wiring.model",
    "evaluate": "legos.wiring.evaluate",
    "load_model": "legos.wiring.model",
    "make_arena": "legos.wiring.arena",
    "make_credit": "legos.credit.registry",
    "synchronous_training_loop": "legos.loop.loop",
    "training_loop": "legos.loop.loop",
}

__all__ = [
    "Arena",
    "Client",
    "Completion",
    "Draw",
    "Episode",
    "Forfeit",
    "GRPOCredit",
    "Game",
    "GameArena",
    "HierarchicalCredit",
    "JointCredit",
    "Matchmaker",
    "MaxRLCredit",
    "Message",
    "OpenAIClient",
    "OverlongPenalty",
    "RAECredit",
    "RLOOCredit",
    "ReinforcePPCredit",
    "Reply",
    "SameViewCredit",
    "Sampling",
    "Seat",
    "Table",
    "Task",
    "Trainer",
    "TrainingConfig",
    "TurnCredit",
    "Void",
    "apply_lora",
    "disable_lora",
    "evaluate",
    "load_model",
    "make_arena",
    "make_credit",
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

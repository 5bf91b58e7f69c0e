"""Self-play reinforcement learning with LoRA for language models, on the machine at hand."""

from importlib import import_module
from typing import Any

_MODULES = {  # module -> its public names; ``__init__.pyi`` lists them for type checkers
    "arena.answer": "Reply",
    "arena.arena": "Arena GameArena",
    "arena.curriculum": "Climb Uniform",
    "arena.endings": "Draw Forfeit Void",
    "arena.game": "Game",
    "arena.rows": "hold_out read_tasks",
    "clients.openai": "OpenAIClient",
    "clients.workers": "Workers",
    "config.league": "LeagueConfig",
    "config.play": "PlayConfig",
    "config.schema": "TrainingConfig",
    "credit": "make_credit",
    "credit.gae": "GAECredit",
    "credit.group": "DrGRPOCredit GRPOCredit RLOOCredit",
    "credit.hierarchical": "HierarchicalCredit",
    "credit.imitated": "ImitationCredit",
    "credit.joint": "JointCredit",
    "credit.maxrl": "MaxRLCredit",
    "credit.overlong": "OverlongPenalty",
    "credit.role": "RAECredit",
    "credit.turns": "TurnCredit",
    "credit.views": "SameViewCredit",
    "credit.whitened": "ReinforcePPCredit",
    "errors": "RunError",
    "installed": "adding",
    "loop.loop": "synchronous_training_loop training_loop",
    "loop.mix": "Mix",
    "play.one_task": "play_task",
    "play.table": "Table",
    "protocols": "Client CreditAssigner Curriculum Matchmaker RewardModel Seat",
    "records.episode": "Episode Task",
    "records.message": "Completion Message Sampling",
    "run.reader": "open_run",
    "wiring.arena": "make_arena",
    "wiring.evaluate": "evaluate",
    "wiring.model": "apply_lora disable_lora load_model",
    "wiring.trainer": "Trainer",
}
_HOMES = {name: f"legos.{module}" for module, names in _MODULES.items() for name in names.split()}
__all__ = [*_HOMES]  # pyrefly: ignore[unresolvable-dunder-all]


def __getattr__(name: str) -> Any:
    """Import a public name's home when it is first asked for, so that ``import legos`` is quick."""
    if name not in _HOMES:
        near = import_module("difflib").get_close_matches(name, _HOMES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise AttributeError(f"module 'legos' has no attribute {name!r}{hint}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The public names, for completion in notebooks."""
    return __all__

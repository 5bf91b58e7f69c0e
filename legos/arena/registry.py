"""Find arenas by name: installed ones, and those in a given file or module."""

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import legos
from legos.arena.arena import Arena, GameArena
from legos.arena.game import Game
from legos.builtin import BUILTIN, is_builtin
from legos.errors import ArenaError, ConfigError, LegosError, did_you_mean, with_story
from legos.installed import adding

GROUP = "legos.arenas"
"""Entry-point group: a package that lists its arenas here can be named without its module."""

WORLDS = "legos.worlds"
"""Entry-point group: scheme -> function that makes the class of the arena SCHEME:NAME."""

ANCHOR = "training.ema_kl_coef"
ANCHORED = (ANCHOR, "training.ema_decay", "training.kl_estimator")
"""Settings that keep the seats of a game from chasing each other, in the unit of its payoffs."""

CHAT_GAMES: Mapping[str, object] = {
    "play.rules": True,
    "play.restrict_choices": True,
    ANCHOR: 0.5,
    "training.entropy_coef": 0.1,
    "training.entropy_coef_end": 0.1,
}
"""Settings of games for chat models, which do not know them."""

CHAT_TEXT: Mapping[str, object] = {"training.learning_rate_end_fraction": 0.1}
"""Settings of other arenas for chat models, unless the arena recommends its own."""

_ANY_MODEL = ("play.", "generation.thinking")  # recommended settings that hold for every model
_FILE = "legos_arena_file_"  # before the path, in the name of a module from a file


def find_arena(name: str) -> type:
    """The ``Arena`` or ``Game`` class of a name.

    Args:
        name: a known arena, ``path/to/file.py:Class``, ``package.module:Class``, or a game of a
            world that others wrote, such as ``openspiel:leduc_poker``.

    Raises:
        ArenaError: the name is unknown, its module cannot be imported, or it is not an arena.
    """
    scheme, colon, game = name.partition(":")
    if colon and scheme in _installed(WORLDS):
        return _of_world(scheme, game)
    place, colon, class_name = name.rpartition(":")
    if colon:
        return _class_of(load_module(place), class_name, place)
    installed = _installed(GROUP)
    if name not in installed:
        file = Path(name if name.endswith(".py") else f"{name}.py")
        if name.endswith(".py") or file.is_file():
            found = ", ".join(_arenas_in(_load_file(file))) or "none"
            raise ArenaError(
                f"{name!r} names a file; add its class as {file}:Class (it has {found})"
            )
        hint = f"{did_you_mean(name, installed)}; one of your own is FILE.py:Class"
        raise ArenaError(f"no arena is called {name!r}{hint}")
    return _load_installed(installed[name])


def advice(name: str, model: str) -> Mapping[str, object]:
    """Settings that an arena recommends for a model, under dotted names.

    Settings of play and the thinking that prompts ask for suit any model; the others were tuned on
    the built-in model, and are left out for other models, since its learning rates are too high for
    large models. Those do not know the games either, so that they are told the rules, and sample
    only legal moves.

    In games a chat model is pulled towards the average of its weights and gets an entropy bonus
    that stays: as the game recommends it where its hidden cards need such a pull, otherwise as
    ``CHAT_GAMES`` has it. Without them the entropy of one that played nim fell to 0.05 nats in 10
    steps, and nothing more was learned (docs/log/chat_models.md). In other arenas its learning rate
    falls, since a constant one undid late in a run what had been learned early.
    """
    kind = find_arena(name)
    recommended: Mapping[str, object] = getattr(kind, "recommended", {})
    if model == BUILTIN:
        return recommended
    kept = {key: value for key, value in recommended.items() if key.startswith(_ANY_MODEL)}
    if is_builtin(model):
        return kept
    if not issubclass(kind, Game | GameArena):
        return {**{name: recommended.get(name, value) for name, value in CHAT_TEXT.items()}, **kept}
    if ANCHOR in recommended:
        kept |= {key: recommended[key] for key in ANCHORED if key in recommended}
        bonus = recommended.get("training.entropy_coef_end", 0.0)
        kept |= {"training.entropy_coef": bonus, "training.entropy_coef_end": bonus}
    return {**CHAT_GAMES, **kept}


def installed_arena(name: str) -> type | None:
    """The class of an installed arena; None: the name is of a file, of a world, or unknown.

    Raises:
        ArenaError: it cannot be imported.
    """
    point = _installed(GROUP).get(name)
    return None if point is None else _load_installed(point)


def known_arenas() -> Mapping[str, type]:
    """Every installed arena by name, in alphabetical order.

    Raises:
        ArenaError: one of them cannot be imported.
    """
    return {name: _load_installed(point) for name, point in sorted(_installed(GROUP).items())}


def _of_world(scheme: str, game: str) -> type:
    """The class of a game of a world.

    Raises:
        ArenaError: the world's package is not installed, or has no such game.
    """
    point = _installed(WORLDS)[scheme]
    try:
        kind = point.load()(game)
    except ModuleNotFoundError as error:
        raise ArenaError(
            f"{scheme}:{game} cannot be loaded: no module {error.name!r}; check the name, and "
            f"add the world: {adding(scheme)}"
        ) from error
    except (Exception, SystemExit) as error:  # the world's own code may raise anything
        raise ArenaError(f"{scheme} has no game {game!r}: {_reason(error)[:250]}") from error
    return kind


@cache
def _installed(group: str) -> Mapping[str, EntryPoint]:
    """The entry points of a group by name; read once, because every package is asked."""
    return {point.name: point for point in entry_points(group=group)}


def _load_installed(point: EntryPoint) -> type:
    return _class_of(load_module(point.module), point.attr, point.module)


def load_module(place: str) -> ModuleType:
    """The module of ``path/to/file.py`` or ``package.module``.

    Raises:
        ArenaError: it does not exist, or cannot be imported.
    """
    if place.endswith(".py"):
        return _load_file(Path(place))
    try:
        return importlib.import_module(place)
    except (Exception, SystemExit) as error:
        raise _unimportable(place, error) from error


def made_of(name: str, what: str) -> Any:
    """An object of a user's file, ``FILE.py:NAME``; a class is made without arguments.

    Args:
        name: the file, or a module, and the name in it.
        what: what it is for, which begins the messages.

    Raises:
        ArenaError: the file cannot be imported.
        ConfigError: it has no such name, or the class cannot be made.
    """
    place, colon, kind_name = name.rpartition(":")
    if not colon:
        raise ConfigError(f"{what} is {name!r}; expected FILE.py:Class")
    kind = getattr(load_module(place), kind_name, None)
    if kind is None:
        raise ConfigError(f"{what} is {name!r}, but {place} has no {kind_name!r}")
    try:
        return kind() if callable(kind) else kind
    except Exception as error:  # the class's own code may raise anything
        refusal = ConfigError(f"{what}: {name!r} cannot be made: {error!r}")
        raise with_story(refusal, error) from error


def is_arena_file(module: ModuleType) -> bool:
    """Whether a module was loaded from a file that was named by its path."""
    return module.__name__.startswith(_FILE)


def name_of_file(path: Path) -> str:
    """The one name of a file's module, so that a second look-up returns the same classes."""
    return f"{_FILE}{path.resolve()}"


def _load_file(path: Path) -> ModuleType:
    name = name_of_file(path)
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        place = (
            "" if path.is_absolute() else f" in {Path.cwd()}; start from where it is, or move it"
        )
        raise ArenaError(f"there is no file {path}{place}")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ArenaError(f"cannot import {path}: it is not a Python file")
    module = importlib.util.module_from_spec(spec)
    if (folder := str(path.resolve().parent)) not in sys.path:
        sys.path.append(folder)  # it may import files beside it, as a script may
    sys.modules[name] = module  # before it runs, because dataclasses look up their module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception | SystemExit):  # Ctrl-C
            raise
        raise _unimportable(path, error) from error
    return module


def _unimportable(place: object, error: BaseException) -> LegosError:
    """Why a module cannot be imported, with its line where that does not follow from the reason."""
    refusal = ArenaError(f"cannot import {place}: {_reason(error)}")
    return refusal if isinstance(error, ImportError | SyntaxError) else with_story(refusal, error)


def _reason(error: BaseException) -> str:
    """Why a module cannot be imported."""
    if isinstance(error, SystemExit):
        code = "" if error.code is None else repr(error.code)
        return f"it ends the process (sys.exit({code})); call that in main() alone"
    hint = ""
    if isinstance(error, ImportError) and (error.name or "").startswith(_FILE):
        return "a file alone has no relative imports; name its module, such as folder.file:Class"
    if isinstance(error, ModuleNotFoundError):
        hint = f"; install it into the environment of {sys.executable}, or mend the import"
    elif isinstance(error, ImportError) and error.name == "legos":
        hint = did_you_mean(f"{error}".split("'")[1], legos.__all__)
    return f"{type(error).__name__}: {error}{hint}"


def _class_of(module: ModuleType, class_name: str, place: str) -> type:
    found = getattr(module, class_name, None)
    if found is None:
        arenas = _arenas_in(module)
        hint = did_you_mean(class_name, arenas) if arenas else "; it defines no arena"
        raise ArenaError(f"{place} has no class {class_name!r}{hint}")
    if not _is_arena(found):
        raise ArenaError(
            f"{class_name!r} in {place} is not a subclass of Arena or Game; write "
            f"class {class_name}(Game) or class {class_name}(Arena)"
        )
    return found


def _arenas_in(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if _is_arena(value)]


def _is_arena(value: object) -> bool:
    return (
        isinstance(value, type)
        and issubclass(value, Arena | Game)
        and value not in (Arena, Game, GameArena)
    )

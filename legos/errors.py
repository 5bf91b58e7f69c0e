"""All errors that the kit raises deliberately, in one tree.

    LegosError
    ├── ConfigError (ValueError)          a setting unknown, out of range or contradicting another
    ├── ModelError (ValueError)           a model folder or name that cannot be loaded
    ├── AdapterError (ValueError)         LoRA arrays of another rank, name, shape or version
    ├── RecordError (ValueError)          a record (turn, sample, batch) that contradicts itself
    ├── RequestError (ValueError)         one generation request that cannot be served
    │   └── NotFoundError                 what a server was asked for does not exist there
    ├── ArenaError (RuntimeError)         an arena that cannot be found or keeps failing
    │   ├── GameSizeError                 a game with too many states to be evaluated exactly
    │   ├── RewardError                   a reward that is no number within bounds; one play fails
    │   └── NoEndpointError               a seat for programs whose client serves no HTTP
    ├── PlayTimeoutError (TimeoutError)   a play that took longer than its arena allows
    ├── PlayCancelledError (RuntimeError) a play in which something that it awaited was cancelled
    ├── RunError (RuntimeError)            a function of Table.run that exceeded a limit or died
    ├── CheckpointError (RuntimeError)    a run folder or checkpoint that cannot be written or read
    ├── EngineError (RuntimeError)        the policy's engine died or was closed; the run ends
    ├── EndpointError (ConnectionError)   an HTTP endpoint failed after its retries; one play fails
    └── TrainerError (RuntimeError)       the trainer failed; the run stops

    DeviceError (EngineError, TrainerError)   the device failed again; a new process may go on
    Stopped (Exception)                       no error: the run was asked to end

Each also derives from a builtin error, so ``except ValueError`` works for callers who do not know
the tree. A message names the object, the value, what was expected, and the next step.
"""

import difflib
import traceback
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import cast

HOME = Path(__file__).parent  # where the kit's own code is
DEEPEST = 12  # lines of an error in a user's code that are shown


class LegosError(Exception):
    """Base class of all errors that the kit raises deliberately."""


class ConfigError(LegosError, ValueError):
    """A setting that does not exist, is out of range or contradicts another one."""


class ModelError(LegosError, ValueError):
    """A model folder or hub name that cannot be loaded."""


class AdapterError(LegosError, ValueError):
    """LoRA arrays that do not fit the model: another rank, name, shape or version."""


class RecordError(LegosError, ValueError):
    """A record (turn, sample, batch) that contradicts itself."""


class RequestError(LegosError, ValueError):
    """One generation request that cannot be served; the engine continues."""


class NotFoundError(RequestError):
    """A server has nothing of the name or at the address that was asked for (404)."""


class ArenaError(LegosError, RuntimeError):
    """An arena that cannot be found, or whose plays keep failing."""


class GameSizeError(ArenaError):
    """A game that has too many states to be evaluated exactly; it can be evaluated by play."""


class NoEndpointError(ArenaError):
    """A seat that a program plays over HTTP, but whose client cannot be served so."""


class RewardError(ArenaError):
    """A reward that is no number within bounds, as a judge may cause; one play fails."""


class PlayTimeoutError(LegosError, TimeoutError):
    """A play that took longer than its arena allows; the step continues without it."""


class PlayCancelledError(LegosError, RuntimeError):
    """A play in which something that it awaited was cancelled; the step continues without it."""


class RunError(LegosError, RuntimeError):
    """A function of ``Table.run`` exceeded a limit or its process died; nothing else is stopped."""


class CheckpointError(LegosError, RuntimeError):
    """A run folder or checkpoint that cannot be written or read."""


class EngineError(LegosError, RuntimeError):
    """The engine died or was closed; every waiting request gets this error."""


class EndpointError(LegosError, ConnectionError):
    """An HTTP endpoint gave no valid answer after its retries; only one play fails."""


class TrainerError(LegosError, RuntimeError):
    """The trainer failed; the run stops with its last checkpoint."""


class DeviceError(EngineError, TrainerError):
    """The device failed, and again when the computation was repeated; a new process may go on.

    Attributes:
        run: folder of the run that it ended, if that has a checkpoint and was not asked to stop.
    """

    run: Path | None = None


class Stopped(Exception):  # noqa: N818 - a message, not an error
    """Raised by what waits or computes for a run that was asked to end."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest known word, or else the list of all."""
    names = sorted(known)
    near = difflib.get_close_matches(word[:100], names, n=1)  # slow for a long word
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known: {', '.join(names)}"


def text_of(value: object, form: Callable[[object], str] = str) -> str:
    """A value as text for a message, also where its own code fails to make one."""
    try:
        return form(value)
    except Exception:  # whatever its own code raises
        return f"<{type(value).__name__} without a text>"


def story_of(error: BaseException) -> str:
    """What a user's code raised, after its lines from the first one outside the kit on."""
    frames = [*traceback.walk_tb(error.__traceback__)]
    first = next((at for at, frame in enumerate(frames) if _is_own(frame)), 0)
    lines = traceback.StackSummary.extract(iter(frames[first:][-DEEPEST:])).format()
    is_group = isinstance(error, BaseExceptionGroup)
    group = cast("BaseExceptionGroup[BaseException]", error) if is_group else None
    inner = map(story_of, group.exceptions if group else ())
    return "".join([*lines, *traceback.format_exception_only(error), *inner])


def with_story(refusal: LegosError, error: BaseException) -> LegosError:
    """An error with the lines of a user's code that caused it as a note, if there are any."""
    if own_line(error):
        refusal.add_note(story_of(error).rstrip())
    return refusal


@contextmanager
def user_code(source: str) -> Generator[None]:
    """Within the block, whatever a user's code raises becomes an ``ArenaError`` that names it."""
    try:
        yield
    except LegosError:
        raise
    except Exception as error:
        raise ArenaError(f"{source} failed:\n{story_of(error)}") from error


def own_line(error: BaseException) -> str:
    """The innermost line outside the kit's code in an error's traceback."""
    own = [frame for frame in traceback.walk_tb(error.__traceback__) if _is_own(frame)]
    return "".join(traceback.StackSummary.extract(iter(own[-1:])).format())


def _is_own(frame: tuple[FrameType, int]) -> bool:
    file = frame[0].f_code.co_filename
    return not (file.startswith("<frozen importlib") or Path(file).is_relative_to(HOME))

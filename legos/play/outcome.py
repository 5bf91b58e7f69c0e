"""Turn the end of a play into its episode: rewards, a regular early end, or a failure."""

from asyncio import CancelledError
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from msgspec.structs import replace

from legos.arena.checks import checked_rewards
from legos.arena.endings import Draw, Forfeit, Void
from legos.arena.reward_parts import weighted
from legos.errors import (
    ArenaError,
    EndpointError,
    EngineError,
    LegosError,
    PlayTimeoutError,
    RewardError,
    did_you_mean,
    own_line,
    story_of,
    text_of,
)
from legos.play.play_state import PlayState
from legos.records.episode import Episode, Failure


def rewards_of(play: PlayState, returned: Any, source: str) -> dict[str, float]:
    """The rewards of a play; named parts are weighted, and kept in its state.

    Args:
        play: the play.
        returned: what the arena's code returned.
        source: the function that returned it, for the message.

    Raises:
        RewardError: a reward is None, or a number that is not finite or beyond ``MAX_REWARD``.
        ArenaError: it is not a mapping from each role to a number, or to its parts.
    """
    arena = play.arena
    if arena.reward_weights:
        returned, play.parts = weighted(returned, arena.reward_weights, source)
    return checked_rewards(returned, arena.roles, source)


def episode_of(
    play: PlayState,
    rewards: Mapping[str, float],
    *,
    error: str | None = None,
    failure: Failure | None = None,
    void: bool = False,
) -> Episode:
    """The episode of a play that has ended with these rewards or failed."""
    return Episode(
        arena=play.arena.name,
        task=play.task,
        rollouts=play.rollouts(),
        rewards=rewards,
        seed=play.seed,
        parts=play.parts,
        metrics=play.metrics,
        notes=tuple(play.notes),
        error=error,
        failure=failure,
        void=void,
        children=tuple(replace(child, parent=play.seed) for child in play.children),
    )


def failure_of(raised: BaseException, source: str) -> Exception:
    """The error that fails a play, also after sys.exit(), or a panic in a library's Rust code.

    Args:
        raised: what the arena's code or a client raised; an error that ends the program is raised.
        source: what raised it, for the message.
    """
    if isinstance(raised, Exception):
        return raised
    if isinstance(raised, CancelledError | GeneratorExit | KeyboardInterrupt):
        raise raised
    failure = RuntimeError(f"{source} raised {type(raised).__name__}: {text_of(raised)}")
    return failure.with_traceback(raised.__traceback__)


@contextmanager
def failing_alone(source: str) -> Generator[None]:
    """Within the block, sys.exit() and panics are errors, as ``failure_of`` makes them."""
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        raise failure_of(error, source) from error


def episode_after(raised: Exception, play: PlayState) -> Episode:
    """The episode of a play that raised an exception; a draw or a forfeit is a regular end.

    Raises:
        ArenaError: the arena's code breaks the rules for plays, so that other plays fail too.
        EngineError: the engine has died, so no other play can continue either.
    """
    ending = _cause(raised)
    if isinstance(ending, Draw | Forfeit):
        try:
            return episode_of(play, _regular_rewards(play, ending, raised))
        except Exception as error:  # of the arena's own forfeit(), for instance
            raised, ending = error, _cause(error)
    if isinstance(ending, EngineError):
        raise ending from None
    if isinstance(ending, ArenaError) and not isinstance(ending, RewardError):
        where = f"in a play of task {play.task.id!r} of arena {play.arena.name!r}"
        ending.add_note(f"{where}\n{own_line(raised)}".rstrip())
        raise ending from None
    if isinstance(ending, Void):
        play.notes.append(f"void: {text_of(ending)}")
        return episode_of(play, {}, void=True)
    failure: Failure = "endpoint" if isinstance(ending, EndpointError) else "failed"
    if isinstance(ending, PlayTimeoutError):
        failure = "timed_out"
    return episode_of(play, {}, error=_story(raised), failure=failure)


def _regular_rewards(
    play: PlayState, ending: Draw | Forfeit, raised: Exception
) -> Mapping[str, float]:
    """The rewards after a draw or a forfeit."""
    arena = play.arena
    if isinstance(ending, Draw):
        play.notes.append(f"draw: {text_of(ending)}")
        return dict.fromkeys(arena.roles, 0.0)
    if ending.role not in arena.roles:
        hint = did_you_mean(ending.role, arena.roles)
        raise ArenaError(f"Forfeit({ending.role!r}) names no role{hint}") from raised
    play.notes.append(text_of(ending))
    play.metrics["forfeit"] = 1.0
    returned: Any = arena.forfeit(ending.role)
    return rewards_of(play, returned, f"forfeit() of arena {arena.name!r}")


def _story(error: Exception) -> str:
    """A failure as text; for an error of the kit, with the line of the arena that caused it."""
    if isinstance(error, LegosError):
        return f"{type(error).__name__}: {text_of(error)}\n{own_line(error)}"
    story = story_of(error)
    if "coroutine" in text_of(error):
        story += "is `await` missing? Write reply = await t.ask(...)\n"
    return story


def _cause(error: Exception) -> Exception:
    """The error that ended a play; of several errors, the first of the most severe kind."""
    if not isinstance(error, ExceptionGroup):
        return error
    group = cast("ExceptionGroup[Exception]", error)
    errors = [_cause(each) for each in group.exceptions]
    failed = [each for each in errors if not isinstance(each, Draw | Forfeit | Void)]
    dead = [each for each in failed if isinstance(each, EngineError)]
    wrong = [each for each in failed if isinstance(each, ArenaError)]
    return (dead or wrong or failed or errors)[0]

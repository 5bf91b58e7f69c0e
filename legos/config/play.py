"""Settings of play: of the arena of a run, and of each arena of a mix."""

from typing import Any, Self

from pydantic import field_validator

from legos.arena.curriculum import CurriculumName
from legos.arena.playable import IllegalMove
from legos.config.objective import ObjectiveSettings
from legos.config.setting import Settings, knob
from legos.config.together import check_together
from legos.credit import RULES, WITHOUT_GROUPS
from legos.errors import ConfigError, did_you_mean
from legos.loop.deficits import check_shares
from legos.records.message import MIN_TEMPERATURE

_EXCLUSIVE = (("matchmaker", "opponents", "the matchmaker decides who meets whom"),)
_NEEDED = (("opponents_end", "opponents", "give the shares at the start too, such as self=1"),)


class PlayConfig(Settings):
    """How the arena is played; none leaves a choice to the arena."""

    tasks_per_step: int | None = knob(None, unit="tasks", ge=1)
    """Tasks of one optimiser step; none: the arena's own number."""
    group_size: int | None = knob(None, unit="episodes", ge=1)
    """Plays of each task; the credit rule compares them with each other. Raise it where most groups
    have equal rewards; none: the arena's own number."""
    credit: str | None = knob(None)
    """Rule that turns rewards into advantages: dr_grpo, grpo, rae and others
    (docs/ideas/credit.md), or FILE.py:Rule; none: the arena's own."""
    curriculum: CurriculumName | None = knob(None)
    """Which level the next task has, in arenas with levels: climb plays the easiest level that is
    not mastered, and some easier tasks; uniform plays all equally often; none: the arena's own."""
    illegal: IllegalMove | None = knob(None)
    """What an illegal move leads to: its role loses (forfeit), is asked again with the reason
    (retry), or plays a random legal move (random); none: the arena's own choice."""
    rules: bool | None = knob(None)
    """State the rules of a game, and the form of an answer, in a system message; none: no. Games
    recommend it for every model but the built-in one, which was trained on their bare positions."""
    restrict_choices: bool | None = knob(None)
    """Sample only legal moves; none: the arena's own choice."""
    concurrency: int = knob(256, unit="episodes", ge=1)
    """Plays that run at the same time for one step; loop.step_concurrency sets for how many steps.
    Lower it to save memory."""
    opponents: dict[str, float] = knob({})
    """Who plays against the policy, each with its share of the tasks, NAME=SHARE (may be repeated):
    self; past, recent, hard, even or matched for its own snapshots; exploiter, exploiters; random,
    optimal, base, FILE.py:Class, an adapter (RUN, RUN@STEP or a folder) or a server. None: itself
    alone."""
    opponents_end: dict[str, float] = knob({})
    """Their shares at the end of the run, which are approached linearly; none: the same."""
    matchmaker: str | None = knob(None)
    """A matchmaker of one's own, FILE.py:Class, in place of opponents; none: the arena's seats."""
    options: dict[str, Any] = knob({})
    """Arguments of the arena's constructor, by name (--play.options.NAME VALUE)."""

    def for_evaluation(self) -> Self:
        """A copy without what training alone reads: it may name what was removed since."""
        return self.replace(opponents={}, opponents_end={}, credit=None)

    @field_validator("opponents", "opponents_end")
    @classmethod
    def _check_opponents(cls, shares: dict[str, float]) -> dict[str, float]:
        check_shares(shares, "among opponents")
        return shares

    @field_validator("credit")
    @classmethod
    def _check_credit(cls, credit: str | None) -> str | None:
        if credit is None or credit in RULES or ":" in credit:
            return credit
        hint = did_you_mean(credit, RULES)
        raise ConfigError(
            f"credit is {credit!r}, which is no credit rule{hint}; expected one of "
            f"{', '.join(RULES)}, or FILE.py:Rule"
        )


class MixedArena(PlayConfig):
    """One arena of a mix; what it leaves out is as in ``play`` and ``generation``."""

    share: float = knob(..., unit="share", ge=0, le=1)
    """Share of the trained tokens; those of all arenas add up to 1."""
    temperature: float | None = knob(None, ge=MIN_TEMPERATURE, le=10)
    """Sampling temperature in training; none: generation.temperature."""
    max_tokens: int | None = knob(None, unit="tokens", ge=1)
    """Longest completion of one turn; none: generation.max_tokens."""

    def over(self, play: PlayConfig) -> PlayConfig:
        """Its settings of play, where ``play`` has those of the run."""
        own = self.model_fields_set & PlayConfig.model_fields.keys()
        return play.replace(**{name: getattr(self, name) for name in own})


def check_play(play: PlayConfig, training: ObjectiveSettings, where: str) -> None:
    """Refuse settings of play that contradict each other.

    Args:
        play: settings of an arena.
        training: settings of the objective.
        where: the group of the settings, ``play`` or ``mix.ARENA``.

    Raises:
        ConfigError: two contradict each other; the message names both.
    """
    if play.group_size == 1 and play.credit in RULES.keys() - WITHOUT_GROUPS:
        raise ConfigError(
            f"{where}.group_size is 1 but {where}.credit {play.credit!r} compares the plays of a "
            "group; every advantage would be 0: use at least 2, or credit 'rae'"
        )
    check_together(play, _EXCLUSIVE, _NEEDED, where=f"{where}.")
    if play.credit == "rae" and training.zero_advantage == "remove":
        raise ConfigError(
            f"training.zero_advantage is 'remove' but {where}.credit is 'rae', where an advantage "
            "of 0 does not mean that all plays of a task earned the same; set zero_advantage "
            "to 'keep'"
        )

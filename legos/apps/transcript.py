"""A play as text: one turn after the other, or its last answer in a line."""

import re
from collections.abc import Iterator
from math import fsum
from textwrap import shorten

from legos.chat.reply import split_thinking
from legos.records.episode import Episode
from legos.run.episodes import StoredEpisode, StoredSeat, StoredTurn, in_order

_WHO = {"user": "told"}  # a message before the question
_CONTROL = re.compile(  # all but the tabulator and the line feed, and changes of direction
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)


def visible(text: str) -> str:
    """A text for a terminal: control characters, which it would obey, as their codes."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def heading(episode: StoredEpisode) -> str:
    """What was played, and who sat where."""
    evaluation = "evaluation, " if episode.evaluation is True else ""
    step = f"step {episode.step}, {evaluation}" if isinstance(episode.step, int) else ""
    seats = ", ".join(f"{seat.role}: {seat.seat}" for seat in episode.seats)
    return visible(f"{step}{episode.arena}, task {episode.task} ({seats})")


def turns_of(
    episode: StoredEpisode, *, thinking: bool = False, sampled: bool = False
) -> Iterator[str]:
    """Each turn in the order of the answers: what the seat was shown and asked, and what it said.

    Args:
        episode: the play.
        thinking: show the thinking too.
        sampled: also say how the answer was sampled, and from how many tokens.
    """
    for seat, index in in_order(episode):
        turn = seat.turns[index]
        shown = [f"({_WHO.get(m.role, m.role)}) {m.content}" for m in turn.messages]
        asked = "\n".join(
            f"    {line}" for text in (*shown, turn.asked) for line in text.splitlines()
        )
        said = turn.said.strip() if thinking else answer_of(turn)
        notes = [f"calls {name}({given})" for name, given in turn.tool_calls]
        notes += [f"reward {turn.reward:+g}"] if turn.reward is not None else []
        notes += ["not legal"] if turn.legal is False else []
        note = f"  [{'; '.join(notes)}]" if notes else ""
        tokens = f"\n    {_sampled(seat, turn)}" if sampled and turn.token_ids else ""
        yield visible(f"{asked}\n{seat.role}> {said}{note}{tokens}")


def _sampled(seat: StoredSeat, turn: StoredTurn) -> str:
    """How an answer was sampled: settings, tokens, log-probability and versions."""
    known = f", log-probability {fsum(turn.logprobs):.4g}" if turn.logprobs else ""
    facts = [f"{len(turn.token_ids)} tokens{known}"]
    if versions := sorted({*turn.versions}):
        facts.append(f"version {' and '.join(map(str, versions))}")
    settings, new = seat.sampling | turn.sampling, len(turn.prompt_ids)
    facts.append(f"after {turn.prompt_ids_kept + new} of the prompt, {new} of them new")
    most = settings["max_tokens"]
    limit = "" if most is None else f", at most {most}"
    facts.append(f"temperature {settings['temperature']:g}{limit}")
    return f"({'; '.join(facts)})"


def answer_of(turn: StoredTurn) -> str:
    """The answer of a turn without its thinking."""
    return split_thinking(turn.said)[1]


def example(episode: Episode, *, width: int = 100) -> str:
    """The last answer of the first trained seat, what it was asked, and its reward, in a line.

    It is empty for one of the choices that an arena gave: a move says little without its game.

    Args:
        episode: a play that did not fail.
        width: maximum number of characters of the question, and of the answer.
    """
    seat = next((r for r in episode.rollouts if r.policy and r.turns), None)
    if seat is None:
        return ""
    turn = seat.turns[-1]
    answer = split_thinking(turn.completion.text)[1]
    if answer.strip() in turn.choices:
        return ""
    asked, said = (
        shorten(text, width, placeholder=" ...") for text in (turn.messages[-1].content, answer)
    )
    return visible(f"{asked} -> {said}  (reward {episode.returns.get(seat.role, 0.0):+.3g})")


def ending(episode: StoredEpisode) -> str:
    """How the play ended: its rewards, those of turns included, or why there are none."""
    lines = [*episode.notes]
    if episode.error:
        lines.append(f"failed: {episode.error.strip()}")
    elif not episode.void:
        returns = {seat.role: episode.returned(seat) for seat in episode.seats}
        returns = {role: returns.get(role, value) for role, value in episode.rewards.items()}
        rewards = (f"{role} {value or 0.0:+g}" for role, value in returns.items())
        lines.append(f"rewards: {', '.join(rewards)}")
    if episode.children:
        lines.append(f"spawned plays: {len(episode.children)}")
    return visible("\n".join(lines))

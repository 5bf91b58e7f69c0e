"""Random plays of games, as text and as states."""

import random
from collections.abc import Mapping

from legos.arena.game import Game, State

__all__ = ["random_play", "transcript"]


def random_play(game: Game, rng: random.Random) -> tuple[list[str], State]:
    """Play uniformly random legal moves.

    Returns:
        One line for each move: role, prompt and move; and the end state.
    """
    lines: list[str] = []
    state = game.after_chance(game.start(rng), rng)
    while (turn := game.turn(state)) is not None:
        roles = (turn,) if isinstance(turn, str) else turn
        moves = {role: rng.choice(game.legal(state, role)) for role in roles}
        for role, move in moves.items():
            lines.append(f"{role} | {game.prompt(state, role)} | {move}".replace("\n", " / "))
        alone = isinstance(turn, str)
        played = game.play(state, moves[turn]) if alone else game.play_all(state, moves)
        state = game.after_chance(played, rng)
    return lines, state


def transcript(game: Game, seed: int) -> tuple[list[str], Mapping[str, float]]:
    """The lines of a random play, and its payoffs."""
    lines, state = random_play(game, random.Random(seed))
    return lines, game.payoff(state)

"""Tic-tac-toe: small enough to solve, too large to learn by heart in a hundred plays."""

from collections.abc import Mapping, Sequence

from legos import Game

__all__ = ["TicTacToe"]

LINES = ("012", "345", "678", "036", "147", "258", "048", "246")
SYMMETRIES = (  # the cell that comes to each place under four rotations and their reflections
    *("012345678", "630741852", "876543210", "258147036"),
    *("210543876", "036147258", "678345012", "852741630"),
)


class TicTacToe(Game):
    """Three in a row of nine cells wins +1, the other seat gets -1; a full board is a draw, 0.

    A move is the number of a free cell, 1 to 9, row by row.

    All plays begin with the empty board, so credit compares each seat with itself in all plays of a
    step. Optimal play of both seats is a draw, so the number that shows learning is the share of
    losses against optimal play: 0.873 at random, 0 at the optimum.

    A view shows the role's own cells with a +, whichever sign it has, so that both seats learn from
    the same boards. With ``canonical``, boards that are equal up to rotation and reflection are one
    state, which is numbered anew after each move: 627 decisions in place of 4,520, with the same
    shares of wins, draws and losses.

    A state is the nine cells: ``x``, ``o``, or the number of a free cell.
    """

    name = "tictactoe"
    roles = ("x", "o")
    rules = (
        "Tic-tac-toe: two players in turn take a free cell of a board of three by three. Three in "
        "a row, a column or a diagonal win; a full board without them is a draw. The cells have "
        "the numbers 1 to 9, row by row. '+' marks your cells and '-' those of the rival. A move "
        "is the number of a free cell."
    )
    utility = "zero_sum"
    # The KL to the EMA keeps the seats from answering only each other's latest mistakes.
    recommended: Mapping[str, object] = {
        "loop.steps": 300,
        "loop.evaluate_every": 25,
        "play.credit": "gae",
        "play.restrict_choices": True,
        "training.entropy_coef": 0.05,
        "training.entropy_coef_end": 0.01,
        "training.ema_kl_coef": 0.4,
        "training.ema_decay": 0.95,
        "training.learning_rate": 5e-3,
    }

    def __init__(self, *, canonical: bool = False) -> None:
        """Choose whether boards that are equal up to symmetry are one state."""
        self.canonical = canonical

    def starts(self) -> Sequence[tuple[str, float]]:
        """The empty board."""
        return [("123456789", 1.0)]

    def turn(self, state: str) -> str | None:
        """The seats alternate until a row is complete or the board is full."""
        if _winner(state) or not self.legal(state, ""):
            return None
        return "o" if state.count("x") > state.count("o") else "x"

    def view(self, state: str, role: str) -> str:
        """The nine cells by number, each with a + if the role took it, a - if the rival did."""
        signs = ("+" if cell == role else "" if cell.isdigit() else "-" for cell in state)
        cells = [f"{number}{sign}" for number, sign in enumerate(signs, start=1)]
        rows = ("".join(cells[start : start + 3]) for start in (0, 3, 6))
        return "\n".join(("You +", *rows))

    def legal(self, state: str, role: str) -> Sequence[str]:
        """The free cells."""
        return tuple(cell for cell in state if cell not in "xo")

    def play(self, state: str, move: str) -> str:
        """Put the sign of the role to move in the cell."""
        role = self.turn(state)
        assert role is not None, "play is not called at an end"
        after = state.replace(move, role)
        return min(_moved(after, places) for places in SYMMETRIES) if self.canonical else after

    def payoff(self, state: str) -> Mapping[str, float]:
        """+1 for the seat with a row, -1 for the other; 0 for both without one."""
        winner = _winner(state)
        if winner is None:
            return {"x": 0.0, "o": 0.0}
        return {role: 1.0 if role == winner else -1.0 for role in self.roles}

    def reference(self) -> Mapping[str, float]:
        """Exact numbers; shares of plays, averaged over both seats."""
        return {
            "value": 0.0,  # of the first seat when both play optimally
            "optimal_vs_random_win": 0.872648,
            "uniform_vs_optimal_loss": 0.872648,
            "uniform_optimal_move_rate": 0.402345 if self.canonical else 0.404581,
            "uniform_exploitability": 0.959830,
        }


def _moved(state: str, places: str) -> str:
    """The board after a rotation or reflection, its free cells numbered by their new places."""
    cells = (state[int(place)] for place in places)
    return "".join(
        str(number) if cell.isdigit() else cell for number, cell in enumerate(cells, start=1)
    )


def _winner(state: str) -> str | None:
    for a, b, c in ((int(x), int(y), int(z)) for x, y, z in LINES):
        if state[a] == state[b] == state[c]:
            return state[a]
    return None

"""An arena of two seats that answer at once; only the first is trained."""

from pathlib import Path

_RIVALS = """
from legos import Arena, Seat, Task

class Rivals(Arena):
    roles = ("learner", "rival")
    max_tokens = 3

    def tasks(self, rng):
        while True:
            yield Task(id="round")

    def seats(self, task):
        rival = Seat(role="rival", client=self.client, name="OLD", adapter="OLD", trainable=False)
        return {**super().seats(task), "rival": rival}

    async def play(self, t):
        said = await t.ask_all({role: "Nim: 5 left" for role in self.roles})
        learner, rival = (len(said[role].answer) for role in self.roles)
        return {"learner": learner - rival, "rival": rival - learner}
"""


def rivals_file(folder: Path, adapter: str) -> str:
    """Write the arena, whose second seat has an adapter; returns its name."""
    (folder / "rivals.py").write_text(_RIVALS.replace("OLD", adapter))
    return f"{folder / 'rivals.py'}:Rivals"

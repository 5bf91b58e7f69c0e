"""An arena in a file of its own, which travels to the nodes of a Ray cluster."""

from pathlib import Path

ARENA = """
from legos import Arena, Task

class Long(Arena):
    tasks_per_step, group_size, max_tokens = 4, 4, 6

    def tasks(self, rng):
        for number in range(1000):
            yield Task(id=str(number), data={"number": number})

    async def play(self, t):
        first = await t.ask("player", f"Nim: {t.task.data['number'] % 9} left")
        second = await t.ask("player", "again", stop=("b",))
        return {"player": float(len(first.text) > len(second.text))}
"""


def arena_file(folder: Path, text: str = ARENA) -> str:
    (folder / "long.py").write_text(text)
    return f"{folder / 'long.py'}:Long"

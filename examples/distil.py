"""Learn from a larger model on one's own answers: on-policy distillation.

    legos serve --model TEACHER --port 8001
    legos train --arena examples/distil.py:Distil --model STUDENT \
      --play.options.data prompts.jsonl \
      --training.kl-coef 1 --training.kl-server http://localhost:8001

The student answers each prompt of the file (rows with "prompt"), every play earns 0, and what moves
it is the KL divergence from the teacher at each of its own tokens: `KL` falls. The teacher needs
the tokenizer of the student. At step 10 a warning says that all rewards are equal, as they are.

With a policy of nim as the teacher of the built-in model (tests/apps/test_distil.py), 40 steps take
20 seconds of CPU time, and `KL` falls from 0.2 to 0.001. Chat models have not been measured.
"""

import random
from collections.abc import Iterable, Mapping
from typing import Any

from legos import Arena, Table, Task, hold_out, read_tasks


class Distil(Arena):
    """Answer the prompts of a file; nothing is rewarded."""

    max_tokens = 256
    group_size = 1

    def __init__(
        self, client: Any = None, *, data: str, held_out: float = 0.1, **common: Any
    ) -> None:
        """Read the prompts; a share of them is only evaluated."""
        super().__init__(client, **common)
        self._trained, self._held_out = hold_out(read_tasks(data, prompt="prompt"), held_out)

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        """The prompts in random order."""
        return rng.sample(self._trained, len(self._trained))

    def held_out(self, rng: random.Random) -> Iterable[Task] | None:
        """Those that are only evaluated, in random order."""
        return rng.sample(self._held_out, len(self._held_out)) or None

    async def play(self, t: Table) -> Mapping[str, float]:
        """One answer; its reward is nothing, so only the divergence counts."""
        await t.ask("player", t.task.data["prompt"])
        return {"player": 0.0}

"""An agent that knows only the ``openai`` package and its environment is trained in its process."""

import asyncio
import os
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from legos import (
    Arena,
    GRPOCredit,
    Task,
    Trainer,
    TrainingConfig,
    load_model,
    synchronous_training_loop,
)
from legos.arena.registry import find_arena

AGENT = '''
"""Answers every line of its input with what the model says, asked twice in one conversation."""
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from openai import OpenAI

def work(line):
    number, base_url, api_key = line.split()
    client = shared.with_options(base_url=base_url, api_key=api_key)
    chat, said = [], []
    for question in ("nim 5", "again"):
        chat.append({"role": "user", "content": question})
        answer = client.chat.completions.create(model="any", messages=chat, max_tokens=8)
        chat.append(answer.choices[0].message)
        said.append(answer.choices[0].message.content)
    with one_writes:
        print(number, *map(repr, said), sep="\\t", flush=True)

shared, one_writes = OpenAI(), Lock()
with ThreadPoolExecutor(8) as threads:
    for line in sys.stdin:
        threads.submit(work, line)
'''


class Outside(Arena):
    """The agent plays each episode; it earns the share of its answers that are "5"."""

    tasks_per_step = 1
    group_size = 16
    play_timeout_s = 60

    def __init__(self, agent: asyncio.subprocess.Process, client: Any) -> None:
        super().__init__(client, credit_assigner=GRPOCredit())
        self._agent = agent
        self._answers: dict[str, asyncio.Future[list[str]]] = {}
        self._numbers = count()
        self.rewards: list[float] = []

    def tasks(self, rng: Any) -> Iterable[Task]:
        yield Task(id="a")

    async def listen(self) -> None:
        assert self._agent.stdout is not None
        async for line in self._agent.stdout:
            number, *said = line.decode().rstrip("\n").split("\t")
            self._answers.pop(number).set_result(said)

    async def play(self, t: Any) -> dict[str, float]:
        answer = asyncio.get_running_loop().create_future()
        number = str(next(self._numbers))
        self._answers[number] = answer
        async with t.endpoint("player") as endpoint:
            line = f"{number} {endpoint.base_url} {endpoint.api_key}\n"
            assert self._agent.stdin is not None
            self._agent.stdin.write(line.encode())
            said = await answer
        self.rewards.append(sum(text == "'5'" for text in said) / len(said))
        return {"player": self.rewards[-1]}


@pytest.fixture(scope="module")
def trainer() -> Iterator[Trainer]:
    config = TrainingConfig(learning_rate=5e-3, kl_coef=0.0, min_samples_per_step=16)
    made = Trainer(model=load_model("builtin"), config=config)
    asyncio.run(made.publish_weights())
    yield made
    made.close()


@pytest.mark.nightly
def test_an_agent_of_the_openai_package_is_trained_in_its_own_process(
    trainer: Trainer, tmp_path: Path
) -> None:
    (tmp_path / "agent.py").write_text(AGENT)

    async def train() -> Outside:
        agent = await asyncio.create_subprocess_exec(
            sys.executable,
            str(tmp_path / "agent.py"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "OPENAI_API_KEY": "none", "NO_PROXY": "127.0.0.1"},
        )
        arena = Outside(agent, trainer.client())
        listening = asyncio.create_task(arena.listen())
        try:
            await synchronous_training_loop(arena, trainer, num_steps=3, progress=False)
        finally:
            agent.kill()
            await agent.wait()
            await listening
        return arena

    arena = asyncio.run(train())
    first, last = arena.rewards[:16], arena.rewards[-16:]
    assert sum(last) > sum(first) + 4, (first, last)
    ledger = trainer.ledger
    ledger.check(queued=0)
    assert ledger.trained > 0
    assert "no_logprobs" not in ledger.discarded


@pytest.mark.slow
def test_the_program_of_the_page_plays(trainer: Trainer, tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "arenas" / "agents.md"
    program, _ = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    (tmp_path / "agent.py").write_text(program)
    kind = find_arena(f"{tmp_path / 'agent.py'}:Agent")
    arena = kind(trainer.client(), credit_assigner=GRPOCredit())
    arena.tasks_per_step, arena.group_size = 1, 2
    batch = asyncio.run(arena.step())
    assert [episode.error for episode in batch.episodes] == [None, None]
    assert len(batch.samples) == 2

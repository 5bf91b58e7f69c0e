"""The most likely mistakes in a program or an arena: each piece of code, and what it raises."""

import re
from pathlib import Path
from textwrap import indent

import pytest

BEFORE = """
import asyncio
import legos
from legos import *
from legos.fakes import ScriptedClient


class Base(Arena):
    tasks_per_step = 1
    group_size = 2

    def tasks(self, rng):
        yield Task(id="a", data={"n": 1})

    async def play(self, t):
        await t.ask("player", "?")
        return {"player": 1.0}


def step(kind, **settings):
    arena = kind(ScriptedClient(["x"] * 9), **{"credit_assigner": GRPOCredit(), **settings})
    asyncio.run(arena.step())
"""
PROGRAMS = {  # code -> message, in which ... stands for any text
    "legos.Areana": "module 'legos' has no attribute 'Areana'; did you mean 'Arena'?",
    "TrainingConfig(lora_rnk=3)": "lora_rnk does not exist; did you mean 'lora_rank'?",
    "TrainingConfig(lora_rank=0)": "lora_rank is 0; expected greater than or equal to 1",
    "Trainer(model='builtin')": (
        "model is 'builtin', a name; expected a model: load_model('builtin')"
    ),
    "load_model('nowhere')": (
        "no model folder 'nowhere'; give a folder, a hub name (org/model), or 'builtin'"
    ),
    "Trainer(model=load_model(), config={'kl_coef': 0.1})": (
        "config is {'kl_coef': 0.1}, a dict; expected TrainingConfig(...)"
    ),
    "apply_lora(load_model(), rank=0)": "rank is 0 and layers is 16; expected at least 1 of each",
    "OpenAIClient('localhost:8000')": "base_url 'localhost:8000' is no HTTP address; expected ...",
    "make_arena('nim', 'http://localhost:8000')": (
        "the client of arena 'nim' is 'http://localhost:8000'; expected one that completes "
        "prompts, such as trainer.client() or OpenAIClient(base_url=...)"
    ),
    "asyncio.run(training_loop('nim', None, 1))": (
        "arena is 'nim', a name; expected make_arena('nim', client)"
    ),
    "asyncio.run(training_loop(Base(), None, 1, episode_concurrency=0))": (
        "episode_concurrency is 0; expected at least 1"
    ),
    "asyncio.run(Base(credit_assigner=GRPOCredit()).step())": (
        "arena 'base' has no client; make it with Base(client)"
    ),
    "asyncio.run(Base(ScriptedClient([])).step())": (
        "arena 'base' has no credit assigner; make it with Base(client, "
        "credit_assigner=DrGRPOCredit())"
    ),
    "step(Base, credit_assigner='grpo')": (
        "the credit rule of arena 'base' is 'grpo'; expected one such as GRPOCredit(), ..."
    ),
    "make_credit('gppo')": "there is no credit rule 'gppo'; did you mean 'grpo'?",
    "read_tasks('keys.jsonl', prompt='q')": "keys.jsonl:1: the row has no 'q'; it has question",
    "open_run('nowhere')": "nowhere holds no run: it has no config.toml; `legos runs` lists ...",
    "Sampling(max_tokens=0)": "max_tokens is 0; expected at least 1, a whole number",
}
ARENAS = {  # what the class Mine(Base) has -> message of its step
    "roles = ('player')": "roles of arena 'mine' is the text 'player'; write (\"player\",)",
    "illegal = 'rety'": "illegal of arena 'mine' is 'rety'; did you mean 'retry'?",
    "def __init__(self, client, **settings): pass": (
        "Mine.__init__ does not call super().__init__(client, credit_assigner=..., ...); take ..."
    ),
    "def tasks(self, rng): [Task(id='a')]": (
        "tasks() of arena 'mine' returned None; write yield Task(id=..., data=...), or return ..."
    ),
    "tasks = [Task(id='a')]": (
        "tasks() of arena 'mine' is [Task(id='a')], a list; write def tasks(self, rng)"
    ),
    "def tasks(self, rng): yield 'a'": (
        "tasks() of arena 'mine' yielded 'a', a str; expected a Task, such as Task(...)"
    ),
    "def tasks(self, rng): yield Task(id=3)": (
        "tasks() of arena 'mine' yielded a Task whose id is 3, an int; expected text"
    ),
    "tasks_per_step = 2; all = (Task(id=i) for i in 'a')\ndef tasks(self, rng): return self.all": (
        "tasks() of arena 'mine' returned a generator again; return a list, or a new one"
    ),
    "tasks_per_step = 2; all = iter([Task(id='a')])\ndef tasks(self, rng): return self.all": (
        "arena 'mine' has no tasks; tasks(rng) yielded none in round 2: return a list, or ..."
    ),
    "def play(self, t): return {'player': 1.0}": (
        "play() of arena 'mine' is not async; write async def play(self, t)"
    ),
    "async def play(self, t): await t.ask('player', '?')": (
        "play() of arena 'mine' returned None; is a `return` missing? expected a reward for each "
        "role: return {'player': 0.0}"
    ),
    "async def play(self, t): return 1.0": (
        "play() of arena 'mine' returned 1.0, a float; expected a reward for each role: ..."
    ),
    "async def play(self, t): return {'palyer': 1.0}": (
        "play() of arena 'mine' returned rewards for 'palyer'; expected a reward for each "
        "role: return {'player': 0.0}"
    ),
    "async def play(self, t): return {'player': '1'}": (
        "play() of arena 'mine' gives 'player' the reward '1', a str; expected a finite number ..."
    ),
    "async def play(self, t): await t.ask('palyer', '?')": (
        "no role 'palyer' at this table; did you mean 'player'?"
    ),
    "async def play(self, t): await t.ask('player', 3)": (
        "the prompt for 'player' is 3, an int; expected text"
    ),
    "async def play(self, t): await t.ask('player', '?', choices=[1])": (
        "the choices for 'player' hold 1, an int; expected texts: [str(x) for x in ...]"
    ),
    "async def play(self, t): await t.ask_all({'player': '?'}, choices={'palyer': ['a']})": (
        "ask_all has no choices for 'player', but for palyer; give each role its own, and None ..."
    ),
    "async def play(self, t): t.ask('player', '?').text": (
        "2 of 2 plays of arena 'mine' failed; the first, of task 'a': ... 'coroutine' object has "
        "no attribute 'text' is `await` missing? Write reply = await t.ask(...)"
    ),
    "async def play(self, t): t.task.data['m']": (
        "2 of 2 plays of arena 'mine' failed; the first, of task 'a': File \"mine.py\", line ..., "
        "in play KeyError: 'm'"
    ),
}


@pytest.mark.filterwarnings("ignore:coroutine")  # which one of them forgets to await
@pytest.mark.parametrize(
    ("code", "message"),
    [
        *PROGRAMS.items(),
        *(
            (f"class Mine(Base):\n{indent(body, '    ')}\nstep(Mine)", message)
            for body, message in ARENAS.items()
        ),
    ],
    ids=[*PROGRAMS, *ARENAS],
)
def test_a_mistake_says_what_to_do(
    code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("keys.jsonl").write_text('{"question": "a"}\n')
    with pytest.raises(Exception) as raised:  # noqa: PT011 - its message is looked at below
        exec(compile(BEFORE + code, "mine.py", "exec"), {})
    said = " ".join(f"{raised.value}".split())
    parts = message.split("...")
    assert re.fullmatch(".*".join(map(re.escape, parts)), said), said
    assert "Traceback" not in said
    assert not list(Path.cwd().glob("runs"))

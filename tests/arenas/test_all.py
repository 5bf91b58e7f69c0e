"""Every arena that ships: it passes its check, plays through engine and server, and trains."""

import asyncio
import json
import re
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from scripted_server import serving
from tiny_folders import write_tiny_model

from arenas.pipelines import run
from legos import (
    Arena,
    OpenAIClient,
    Trainer,
    TrainingConfig,
    load_model,
    make_arena,
    training_loop,
)
from legos.arena.registry import known_arenas
from legos.checks import check_arena
from legos.clients.engine import EngineClient
from legos.config.schema import GenerationConfig, PlayConfig
from legos.fakes import ScriptedClient
from legos.protocols import Client
from legos.records.group import Group
from legos.records.message import Continuation, Prompt, Sampling
from legos.records.names import POLICY
from legos.server.app import make_app
from legos.server.service import Service

STEPS, FAR = 2, 5  # steps of training; after five, plays have ended in every way
CHAT = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
SHIPPED = [name for name in known_arenas() if name != "programs"]  # test_programs.py plays that one


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arenas")
    rows = [{"question": f"{n} + 1?", "answer": f"#### {n + 1}"} for n in range(40)]
    (folder / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for number in range(8):
        (folder / f"text{number}.txt").write_text(f"The mast number {number} was built by Ana.")
    return folder


def made(name: str, client: Client, files: Path, *, max_tokens: int | None = None) -> Arena:
    """An arena with small settings."""
    options = {"math": {"data": str(files / "sums.jsonl")}, "spice": {"texts": str(files)}}
    play = PlayConfig(options=options.get(name, {}), tasks_per_step=2, group_size=2)
    return make_arena(name, client, play=play, generation=GenerationConfig(max_tokens=max_tokens))


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_the_check_passes(name: str, files: Path) -> None:
    findings = check_arena(made(name, ScriptedClient([]), files), plays=6)
    assert {each.name: each.text for each in findings if each.passed is False} == {}


@pytest.fixture(scope="module")
def trained(files: Path) -> Generator[tuple[Trainer, str]]:
    """A trainer of a tiny model, and the address of a server of its engine."""
    folder = files / "model"
    write_tiny_model(folder)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": CHAT}))
    model = load_model(folder)
    config = TrainingConfig(lora_rank=4, learning_rate=1e-3, min_samples_per_step=1)
    trainer = Trainer(model=model, config=config)
    service = Service(
        EngineClient(trainer.engine, model.tokenizer),
        trainer.engine,
        model.tokenizer,
        model="tiny",
        context=model.context,
        lora_scale=1.0,
    )
    with serving(make_app(service)) as url:
        yield trainer, url
    trainer.close()


class Led:
    """Asks a client for one of some texts, so that a play gets far with a model of random weights.

    The texts are choices that alone can be sampled; which of them comes, its tokens and its
    log-probabilities are the engine's.
    """

    def __init__(self, client: Client, texts: Callable[[str], Sequence[str]]) -> None:
        self._client = client
        self._texts = texts

    async def complete(self, prompt: Prompt, sampling: Sampling, *, adapter: str = POLICY) -> Any:
        messages: Any = prompt.messages if isinstance(prompt, Continuation) else prompt
        choices = tuple(self._texts(messages[-1].content))
        led = replace(sampling, choices=choices, restrict=True, max_tokens=None)
        return await self._client.complete(prompt, led, adapter=adapter)


def proposals_and_answers(prompt: str) -> Sequence[str]:
    """Of absolute_zero: many new programs; the right output and a wrong one."""
    if "Write a new program" in prompt:
        return [f"PROGRAM: keep odd | mul {n} INPUT: [5, 2, 7, 1]" for n in range(2, 60)]
    program, given = re.findall(r"PROGRAM: (.*) INPUT: (\[.*?\]) What", prompt)[-1]
    return [str(run(program, json.loads(given))), "[1]"]


def questions_and_answers(prompt: str) -> Sequence[str]:
    """Of spice: many new questions; the right name and a wrong one."""
    if "QUESTION: ..." in prompt:
        return [f"QUESTION: Who built what, in version {n}? ANSWER: Ana" for n in range(60)]
    return ["Ana", "Bob"]


def calls_and_answers(prompt: str) -> Sequence[str]:
    """Of zorplex: the call that is needed; its result in three forms, and a wrong number."""
    if result := re.search(r"LOOKUP\[\w+\] = (\d+)", prompt):
        right = f"[ANSWER] {result[1]}"
        return [right, f"So it is {right}", f"Then {right}", "[ANSWER] 1234"]
    word = re.search(r"the number of (\w+)\?", prompt)
    assert word is not None
    return [f"LOOKUP[{word[1]}]", f"I call LOOKUP[{word[1]}]."]


def offers_and_agreements(prompt: str) -> Sequence[str]:
    """Of negotiation: an offer that helps both, its acceptance, and the end after a trade."""
    told = prompt.splitlines()[-2]
    if "[accept]" in told:
        return ["[end]", "I [end] here."]
    if "[offer" in told:
        return ["[accept]", "Well, [accept]."]
    return ["[offer 2 wood for 3 gold]", "[offer 3 wood for 2 gold]"]


LED = {
    "absolute_zero": (proposals_and_answers, {"kinds": ["deduction"], "answers": 4}),
    "spice": (questions_and_answers, {"answers": 4}),
    "zorplex": (calls_and_answers, {"kinds": ["simple"]}),
    "negotiation": (offers_and_agreements, {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SHIPPED if name not in LED])
def test_it_trains_and_plays_over_http(
    name: str, files: Path, trained: tuple[Trainer, str]
) -> None:
    trainer, url = trained
    before = trainer.step
    arena = made(name, trainer.client(), files, max_tokens=4)

    errors: list[str] = []

    async def look(_: object, batches: Sequence[Group]) -> None:
        errors.extend(e.error for b in batches for e in b.episodes if e.error)

    async def both() -> None:
        await training_loop(arena, trainer, before + STEPS, after_step=look, progress=False)
        async with OpenAIClient(url) as http:
            batch = await made(name, http, files, max_tokens=4).step()
        await look(None, [batch])
        trainer.train_step(batch)

    asyncio.run(both())
    assert errors == []
    assert trainer.step == before + STEPS + 1


def check_far(name: str, batches: Sequence[Group]) -> None:
    """The plays got to what the arena is for, and it is trained on.

    The plays of a single step may all succeed, or propose nothing new; those of several do not.
    """
    few = len(batches) == 1
    episodes = [episode for batch in batches for episode in batch.episodes]
    assert [episode.error for episode in episodes if episode.error] == []
    roles = {sample.role for batch in batches for sample in batch.samples}
    turns = [turn for e in episodes for rollout in e.rollouts for turn in rollout.turns]
    assert all(turn.completion.trainable and turn.completion.restricted for turn in turns)
    assert len({sum(turn.completion.logprobs) for turn in turns}) > 1
    if name in ("absolute_zero", "spice"):
        spawned = [child for episode in episodes for child in episode.children]
        assert len(spawned) >= 2 * len(batches)
        solved = {child.rewards["solver"] for child in spawned}
        assert solved == {0.0, 1.0} or (few and solved < {0.0, 1.0})
        assert all(child.rollouts[0].turns[0].completion.trainable for child in spawned)
        assert "solver" in roles
    elif name == "zorplex":
        assert all(episode.metrics["calls"] >= 1 for episode in episodes)
        solved = {e.metrics.get("success", 0.0) for e in episodes}
        assert solved == {0.0, 1.0} or (few and solved < {0.0, 1.0})
        assert all("LOOKUP[" in turn.messages[0].content for turn in turns)
        assert {len(rollout.turns) for e in episodes for rollout in e.rollouts} == {2}
    else:
        assert all(episode.metrics["agreement"] == 1.0 for episode in episodes)
        assert {turn.completion.text for turn in turns} >= {"[accept]", "Well, [accept]."}
        assert roles == {"ann", "bob"}


@pytest.mark.slow
@pytest.mark.parametrize("name", LED)
def test_it_trains_on_what_it_is_for(name: str, files: Path, trained: tuple[Trainer, str]) -> None:
    trainer, url = trained
    texts, options = LED[name]
    here, there = [], []

    def led(client: Client) -> Arena:
        given = {**options, **({"texts": str(files)} if name == "spice" else {})}
        credit: Any = "hierarchical" if "answers" in options else "dr_grpo"
        play = PlayConfig(options=given, tasks_per_step=2, group_size=4, credit=credit)
        return make_arena(name, Led(client, texts), play=play)

    async def keep(_: object, batches: Sequence[Group]) -> None:
        here.extend(batches)

    async def both() -> None:
        steps = trainer.step + FAR
        arena = led(trainer.client())
        await training_loop(arena, trainer, steps, after_step=keep, progress=False)
        async with OpenAIClient(url) as http:
            there.append(await led(http).step())
        trainer.train_step(there[0])
        assert trainer.step == steps + 1

    asyncio.run(both())
    assert len(here) >= FAR
    check_far(name, here)
    check_far(name, there)

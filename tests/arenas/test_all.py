"""Every arena that ships: it passes its check, plays through engine and server, and trains."""

import asyncio
import json
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

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
from legos.clients.engine import EngineClient
from legos.config.schema import GenerationConfig, PlayConfig
from legos.data.sample import TrainingBatch
from legos.protocols import Client
from legos.server.app import make_app
from legos.server.service import Service
from legos.testing import ScriptedClient, check_arena, serving, write_tiny_model

STEPS = 5
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


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_it_trains_and_plays_over_http(
    name: str, files: Path, trained: tuple[Trainer, str]
) -> None:
    trainer, url = trained
    before = trainer.step
    arena = made(name, trainer.client(), files, max_tokens=4)

    errors: list[str] = []

    async def look(_: object, batches: Sequence[TrainingBatch]) -> None:
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

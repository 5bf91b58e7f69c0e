"""A server that comes back with another model at the same address ends the run, and names both."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from reference_parity import mixed_samples
from scripted_server import serving
from tiny_folders import write_tiny_model

from legos import GRPOCredit, Trainer, TrainingConfig, load_model, make_arena
from legos.config.schema import GenerationConfig
from legos.errors import EngineError, ModelError
from legos.loop.loop import synchronous_training_loop
from legos.server.options import ServerOptions
from legos.weights.base import fingerprint_of
from legos.wiring.http import app_of
from legos.wiring.model import apply_lora
from legos.wiring.references import reference_servers


class Address:
    """An ASGI application that passes requests to one of several, as if servers were restarted."""

    def __init__(self, *apps: Any) -> None:
        self.apps = list(apps)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.apps[0](scope, receive, send)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models of the same shape with different weights."""
    folder = tmp_path_factory.mktemp("models")
    return [write_tiny_model(folder / name, seed=n) for n, name in enumerate(("first", "other"))]


@contextmanager
def servers_at(folders: list[Path]) -> Iterator[tuple[str, Address]]:
    with ExitStack() as stack:
        apps: list[Any] = []
        for folder in folders:
            model = stack.enter_context(closing(load_model(str(folder))))
            apply_lora(model)
            engine = stack.enter_context(closing(model.make_engine()))
            apps.append(app_of(model, engine, name=folder.name, options=ServerOptions()))
        address = Address(*apps)
        yield stack.enter_context(serving(address)), address


def both(folders: list[Path]) -> str:
    first, other = map(fingerprint_of, folders)
    return rf"was model 'first' \({first}\) and has come back as model 'other' \({other}\)"


@pytest.mark.slow
def test_a_run_ends_when_its_server_comes_back_with_another_model(folders: list[Path]) -> None:
    async def swap(*_: object) -> None:
        address.apps.reverse()

    with servers_at(folders) as (url, address):
        trainer = Trainer(
            model=load_model(str(folders[0])),
            config=TrainingConfig(min_samples_per_step=4),
            generation=url,
        )
        with closing(trainer):
            short = GenerationConfig(max_tokens=4)
            arena = make_arena("nim", trainer.client(), generation=short)
            arena.credit_assigner, arena.tasks_per_step, arena.group_size = GRPOCredit(), 2, 4
            loop = synchronous_training_loop(arena, trainer, 3, after_step=swap, progress=False)
            with pytest.raises(EngineError, match=both(folders)):
                asyncio.run(loop)
    assert trainer.step == 1


def test_a_reference_server_that_comes_back_with_another_model_is_refused(
    folders: list[Path],
) -> None:
    with servers_at(folders) as (url, address), closing(load_model(str(folders[0]))) as model:
        apply_lora(model)
        config = TrainingConfig(kl_coef=0.3, kl_server=(url,))
        references = reference_servers(config, model, api_key=None)
        assert references is not None
        address.apps.reverse()
        with closing(references), pytest.raises(EngineError, match=both(folders)):
            references(mixed_samples()).result(timeout=60)


@pytest.mark.slow
def test_a_reference_server_that_hangs_ends_the_run(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    monkeypatch.setattr("legos.wiring.references.PATIENCE_S", 2.0)
    with servers_at(folders[:1]) as (url, address), closing(load_model(str(folders[0]))) as model:
        apply_lora(model)
        config = TrainingConfig(kl_coef=0.3, kl_server=(url,))
        references = reference_servers(config, model, api_key=None)
        assert references is not None
        address.apps = [hang]
        with (
            closing(references),
            pytest.raises(EngineError, match=r"gave no answer within 2 s.*resume"),
        ):
            references(mixed_samples()).result(timeout=60)
        monkeypatch.setattr("legos.wiring.same_model.PATIENCE_S", 0.1)
        with pytest.raises(EngineError, match=r"has not scored a fixed text within 0\.1 s"):
            reference_servers(config, model, api_key=None)


@pytest.mark.slow
def test_reference_servers_with_two_other_models_are_refused(
    folders: list[Path], tmp_path: Path
) -> None:
    third = write_tiny_model(tmp_path / "third", seed=2)
    with (
        servers_at(folders[1:]) as (one, _),
        servers_at([third]) as (other, _),
        closing(load_model(str(folders[0]))) as model,
    ):
        apply_lora(model)
        same = TrainingConfig(kl_coef=0.3, kl_server=(one, one))
        references = reference_servers(same, model, api_key=None)
        assert references is not None
        references.close()
        mixed = TrainingConfig(kl_coef=0.3, kl_server=(one, other))
        with pytest.raises(ModelError, match=f"{other[-6:]} has another model than .*{one[-6:]}"):
            reference_servers(mixed, model, api_key=None)

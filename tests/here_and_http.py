"""One small engine, asked in this process and over HTTP."""

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from scripted_server import serving
from tiny_folders import write_tiny_model

from legos import OpenAIClient, apply_lora, load_model
from legos.clients.engine import EngineClient
from legos.protocols import Client
from legos.server.app import make_app
from legos.server.service import Service

__all__ = ["here_and_http"]


@contextmanager
def here_and_http(folder: Path, template: str) -> Generator[Mapping[str, Client]]:
    """Within the block, clients of a tiny model with a chat template: "engine" and "http"."""
    write_tiny_model(folder)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": template}))
    model = load_model(folder)
    apply_lora(model)
    engine = model.make_engine()
    engine.load_adapter(model.base_adapter()).result()
    here = EngineClient(engine, model.tokenizer)
    service = Service(
        here, engine, model.tokenizer, model="tiny", context=model.context, lora_scale=1.0
    )
    with serving(make_app(service)) as url:
        yield {"engine": here, "http": OpenAIClient(url)}
    engine.close()
    model.close()

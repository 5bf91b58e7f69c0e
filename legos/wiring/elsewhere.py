"""Make the engine of a trainer that runs elsewhere: on servers, in vLLM, or on a Ray cluster."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from legos.config.schema import RunConfig
from legos.errors import ConfigError
from legos.timeouts import run_to_end
from legos.wiring.engines import MakeEngine, kind_of, served_engine
from legos.wiring.rivals import rank_of_rivals, rivals_of

_KINDS = {"vllm": "a vLLM server", "openai": "neither `legos serve` nor vLLM"}


def elsewhere(
    config: RunConfig, policies: Sequence[str], api_key: str | None, say: Callable[[str], object]
) -> MakeEngine | None:
    """Makes the engine that the settings name; None: one in this process.

    Raises:
        ConfigError: the servers are of a kind that cannot work together.
        EngineError: a server does not answer.
        AdapterError: the adapter of an opponent is damaged.
    """
    from legos.wiring.ray import ray_engine
    from legos.wiring.vllm import started_vllm

    if config.engine == "vllm":
        rivals, rank = rivals_of(config), rank_of_rivals(config)
        return partial(started_vllm, policies=policies, rivals=rivals, rank=rank, say=say)
    if config.ray is not None and not config.server:
        return partial(ray_engine, config, say=say)
    if not config.server:
        return None
    return engine_at(
        config.server,
        policies,
        rivals=rivals_of(config),
        api_key=api_key,
        adapter_folder=config.adapter_folder,
    )


def engine_at(
    urls: Sequence[str],
    policies: Sequence[str],
    *,
    rivals: int = 0,
    api_key: str | None,
    adapter_folder: Path | None = None,
) -> MakeEngine:
    """Makes the engine on running servers.

    Raises:
        ConfigError: the servers are of a kind that cannot work together.
        EngineError: a server does not answer.
    """
    from legos.wiring.vllm import vllm_at

    kinds = {url: run_to_end(kind_of(url, api_key=api_key)) for url in urls}
    if set(kinds.values()) == {"vllm"}:
        return partial(
            vllm_at,
            urls,
            policies=policies,
            rivals=rivals,
            api_key=api_key,
            adapter_folder=adapter_folder,
        )
    if adapter_folder is not None:
        raise ConfigError(
            f"adapter_folder is {str(adapter_folder)!r}, but only vLLM servers read adapters in a "
            "folder; `legos serve` gets them over HTTP: leave it out"
        )
    other = next((url for url, kind in kinds.items() if kind != "legos"), None)
    if other is not None:
        raise ConfigError(
            f"server {other!r} is {_KINDS[kinds[other]]}, and the servers of a run are all "
            "`legos serve` or all vLLM; give addresses of one kind"
        )
    return partial(served_engine, urls, api_key=api_key, policies=policies, rivals=rivals)

"""Check where the parts of a run are: the library that trains, the engines, the players."""

from collections.abc import Mapping
from typing import Any

from legos.errors import ConfigError

__all__ = ["check_places"]


def check_places(config: Any) -> None:
    """Refuse places that exclude each other, and settings that a place does not support.

    Args:
        config: a ``RunConfig``, whose module imports this one.

    Raises:
        ConfigError: the message names both settings.
    """
    if config.server and config.engine != "device":
        raise ConfigError(
            f"engine is {config.engine!r} but server is {config.server[0]!r}; give one of them"
        )
    if config.adapter_folder is not None and not config.server:
        raise ConfigError(
            f"adapter_folder is {str(config.adapter_folder)!r} but server is empty; vLLM servers "
            "read adapters there: give their addresses, or leave adapter_folder out"
        )
    _check_ray(config)
    if config.remote_engine:
        _check_own_engine(config)
    if config.device == "torch":
        _check_torch(config)


def _check_ray(config: Any) -> None:
    """Refuse players and engines without a cluster, and engines from two places."""
    if config.ray is None:
        for name, value, alone in (
            ("players", config.players, 1),
            ("engines", config.engines, None),
        ):
            if value != alone:
                raise ConfigError(
                    f"{name} is {value} but ray is not set; give the address of a Ray cluster, "
                    f"--ray local for one of this machine, or leave {name} out"
                )
        return
    if config.engine != "device":
        raise ConfigError(
            f"ray is {config.ray!r} but engine is {config.engine!r}; engines of a cluster are of "
            "the device: leave engine out, or leave ray out"
        )
    if config.server and config.engines is not None:
        raise ConfigError(
            f"engines is {config.engines} but server is {config.server[0]!r}; players ask either: "
            "leave one of them out"
        )


def _check_own_engine(config: Any) -> None:
    """Refuse settings of an engine in this process, where another one generates."""
    if config.server:
        what = f"server is {config.server[0]!r}"
    else:
        what = f"engine is {config.engine!r}" if config.ray is None else f"ray is {config.ray!r}"
    if config.loop.deterministic:
        raise ConfigError(
            f"loop.deterministic is true but {what}; a server batches requests as they "
            "arrive, which changes rounding: leave one of them out"
        )
    chosen: Mapping[str, Any] = config.generation.model_dump(exclude_defaults=True)
    if "max_batch" in chosen and (config.server or config.ray is None):
        raise ConfigError(
            f"generation.max_batch is {chosen['max_batch']} but {what}, which has limits of its "
            "own; set it there and leave generation.max_batch out"
        )


def _check_torch(config: Any) -> None:
    """Refuse settings that torch does not support."""
    training = config.training
    if not config.remote_engine:
        raise ConfigError(
            "device is torch but server is empty; torch trains and does not generate: start a "
            "server of the model (legos serve) and give its address, set engine to vllm, or set "
            "device to mlx"
        )
    for name, does in (
        ("memory_limit_gib", "plans no memory"),
        ("decode_pause_s", "does not measure its passes"),
    ):
        if (value := getattr(training, name)) is not None:
            raise ConfigError(
                f"device is torch but training.{name} is {value}; torch {does}: "
                "lower training.micro_batch_tokens, or set device to mlx"
            )

"""Settings: one schema, read from TOML and the command line, each value with its source."""

from legos.config.resolve import ResolvedConfig, read_config, resolve
from legos.config.schema import (
    GenerationConfig,
    LoopConfig,
    PlayConfig,
    RunConfig,
    TrackConfig,
    TrainingConfig,
)

__all__ = [
    "GenerationConfig",
    "LoopConfig",
    "PlayConfig",
    "ResolvedConfig",
    "RunConfig",
    "TrackConfig",
    "TrainingConfig",
    "read_config",
    "resolve",
]

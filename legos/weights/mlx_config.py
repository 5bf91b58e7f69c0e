"""What mlx-lm's ``adapter_config.json`` says; ``mlx_lm.lora`` and this kit write it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from legos.errors import AdapterError
from legos.weights.adapter import Header, LoraShape, shape_of

__all__ = ["MlxConfig"]


class Parameters(msgspec.Struct, frozen=True):
    """LoRA's parameters."""

    rank: int
    scale: float
    keys: tuple[str, ...] | None = None  # adapted modules; None: all linear modules


class MlxConfig(msgspec.Struct, frozen=True):
    """The entries that are read; mlx-lm writes all options of its command."""

    fine_tune_type: str = "lora"
    num_layers: int = 0  # number of adapted layers, counted from the last
    lora_parameters: Parameters | None = None
    model: str | None = None  # the base model, as mlx-lm's command took it
    legos: Header | None = None  # identifies the adapter; None: another program wrote it

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "MlxConfig":
        """Check the content of the file.

        Raises:
            AdapterError: an entry has a wrong type.
        """
        try:
            return msgspec.convert(config, cls)
        except msgspec.ValidationError as error:
            raise AdapterError(f"config is no adapter_config.json of mlx-lm: {error}") from error

    def shape_of(self, arrays: Mapping[str, Any]) -> LoraShape:
        """The shape of an adapter of this configuration.

        Raises:
            AdapterError: it is neither LoRA nor DoRA, or contradicts the arrays.
        """
        kind, parameters = self.fine_tune_type, self.lora_parameters
        if kind not in ("lora", "dora"):
            raise AdapterError(f"its fine_tune_type is {kind!r}; expected 'lora' or 'dora'")
        if parameters is None:
            raise AdapterError("its configuration has no lora_parameters; expected rank and scale")
        shape = shape_of(arrays, parameters.scale)
        if (parameters.rank, kind == "dora") != (shape.rank, shape.use_dora):
            raise AdapterError(
                f"its configuration has fine_tune_type {kind!r} and rank {parameters.rank}, and "
                f"its arrays are those of {'dora' if shape.use_dora else 'lora'} of rank "
                f"{shape.rank}; take both files from one training"
            )
        if self.legos is None or parameters.keys is None:
            return shape
        return replace(shape, num_layers=self.num_layers, modules=parameters.keys)

"""The request bodies of the endpoints for adapters."""

from typing import Any

from pydantic import Field

from legos.server.schemas.schema import Body, Schema, Text

__all__ = ["AdapterFields", "AdapterUpload", "VllmLoad", "VllmUnload"]


class AdapterFields(Schema):
    """Fields of an uploaded adapter; what is None is read from the adapter's file."""

    name: str | None = Field(default=None, description="Default: the file's, or policy.")
    version: int | None = Field(default=None, ge=0)
    scale: float | None = Field(default=None, description="LoRA's multiplier.")
    rank: int | None = Field(
        default=None, ge=1, description="Compared with the rank of the weights."
    )


class AdapterUpload(AdapterFields, Body):
    """An adapter as JSON."""

    weights: str | None = Field(default=None, description="base64 of safetensors")
    path: str | None = Field(default=None, description="below the adapter folder")
    config: dict[str, Any] | None = Field(default=None, description="PEFT's adapter_config.json")


class VllmLoad(Body):
    """vLLM's request to load an adapter from a folder."""

    lora_name: Text
    lora_path: Text = Field(description="Below the adapter folder.")
    load_inplace: bool = Field(False, description="Replace the adapter loaded under the name.")


class VllmUnload(Body):
    """vLLM's request to drop an adapter."""

    lora_name: Text
    lora_int_id: int | None = Field(default=None, description="Ignored.")

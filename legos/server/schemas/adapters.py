"""The request bodies of the endpoints for adapters."""

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["BYTES", "JSON", "LOAD_BODY", "VllmLoad", "VllmUnload"]

JSON, BYTES = "application/json", "application/octet-stream"
LOAD_BODY = {
    "required": True,
    "content": {
        JSON: {
            "schema": {
                "type": "object",
                "properties": {
                    "weights": {"type": "string", "description": "base64 of safetensors"},
                    "path": {"type": "string", "description": "below the adapter folder"},
                    "name": {"type": "string", "default": "policy"},
                    "version": {"type": "integer", "minimum": 0},
                    "scale": {"type": "number"},
                    "rank": {"type": "integer", "minimum": 1},
                    "config": {"type": "object", "description": "PEFT's adapter_config.json"},
                },
                "additionalProperties": False,
            },
            "examples": {
                "weights": {"value": {"weights": "<base64 of safetensors>", "version": 12}},
                "folder": {"value": {"path": "adapters/v12", "name": "rival"}},
            },
        },
        BYTES: {"schema": {"type": "string", "format": "binary"}},
    },
}


class VllmLoad(BaseModel):
    """vLLM's way to load an adapter from a folder."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"lora_name": "rival", "lora_path": "adapters/v12"}]},
    )

    lora_name: str = Field(min_length=1)
    lora_path: str = Field(min_length=1, description="Below the adapter folder.")
    load_inplace: bool = Field(False, description="Replace what is live under the name.")


class VllmUnload(BaseModel):
    """vLLM's way to drop an adapter."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"lora_name": "rival"}]}
    )

    lora_name: str = Field(min_length=1)
    lora_int_id: int | None = Field(None, description="Not looked at.")

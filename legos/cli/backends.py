"""The options of ``legos serve`` that only one of its two backends reads."""

import inspect
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from legos.cli.output import show
from legos.errors import ConfigError

__all__ = ["NOT_OF_LEGOS", "refuse_unused", "serve_with_vllm"]

NOT_OF_LEGOS = ("vllm_bin", "vllm_arguments")
NOT_OF_VLLM = (
    "replicas",
    "memory_limit_gib",
    "max_queue",
    "timeout_s",
    "max_body_mb",
    "adapter_folder",
    "max_adapters",
    "drain_s",
    "keep_awake",
    "log_prompts",
)


def refuse_unused(
    command: Callable[..., object], given: Mapping[str, Any], names: Sequence[str], backend: str
) -> None:
    """Refuse options that a backend does not read.

    Args:
        command: the command, whose signature has the defaults.
        given: every option of the command.
        names: the options that the backend does not read.
        backend: the option that chose the backend, for the message.

    Raises:
        ConfigError: one of them was given.
    """
    for name in names:
        if given[name] != inspect.signature(command).parameters[name].default:
            raise ConfigError(f"--{name.replace('_', '-')} has no effect with {backend}")


def serve_with_vllm(command: Callable[..., object], given: Mapping[str, Any]) -> None:
    """Serve with vLLM.

    Args:
        command: the command ``serve``.
        given: its options.

    Raises:
        ConfigError: vLLM does not read one of them.
    """
    from legos.apps.serve import read_adapters
    from legos.apps.serve_vllm import serve_vllm

    refuse_unused(command, given, NOT_OF_VLLM, "--backend vllm")
    serve_vllm(
        model=given["model"],
        adapters=read_adapters(given["adapter"]),
        host=given["host"],
        port=given["port"],
        api_key=given["api_key"],
        max_rows=given["max_batch"],
        program=given["vllm_bin"],
        arguments=[part for text in given["vllm_arguments"] for part in shlex.split(text)],
        say=show,
    )

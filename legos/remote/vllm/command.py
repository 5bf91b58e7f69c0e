"""The command line, environment and process of ``vllm serve`` for a run."""

import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from legos.errors import ConfigError
from legos.remote.process import Command, ServerProcess

logger = logging.getLogger(__name__)

PROGRAM = "LEGOS_VLLM_BIN"  # environment variable: path of the program
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # the ranks that vLLM has room for
CPU_CACHE = "VLLM_CPU_KVCACHE_SPACE"  # environment variable, GiB; only vLLM for CPUs reads it
THREADS = "OMP_NUM_THREADS"  # environment variable
WHOLE_PREFILLS = 16384  # tokens of a step; vLLM for CPUs fails if it splits a seeded prompt
_GPUS = (Path("/dev/nvidiactl"), Path("/dev/kfd"))  # of NVIDIA's and AMD's drivers


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """What a run needs of its vLLM server."""

    model: str | Path  # folder of the model, or its name on the hub
    name: str  # name of the model in the API
    dtype: str  # float type that it computes in: float32, bfloat16 or float16
    context: int  # maximum tokens of prompt plus completion
    rank: int  # largest LoRA rank
    max_loras: int  # number of adapters that can answer at the same time
    arguments: Sequence[str] = ()  # further arguments, after all others


def max_rank(rank: int) -> int | None:
    """The ``--max-lora-rank`` with which vLLM serves adapters of a rank; None: it has no room."""
    return next((room for room in _RANKS if room >= rank), None)


def find_vllm(program: str | Path | None = None) -> Path:
    """Path of the ``vllm`` program.

    Args:
        program: its path, as the user gave it; None: ``LEGOS_VLLM_BIN``, or else ``vllm`` on PATH.

    Raises:
        ConfigError: it is not found.
    """
    given = program or os.environ.get(PROGRAM) or "vllm"
    found = shutil.which(given)
    if found is None:
        raise ConfigError(
            f"the program {str(given)!r} is not found; install vLLM into an environment of its own "
            "(docs/serve/vllm.md) and give the path of its program in "
            f"{PROGRAM}, as ENV/bin/vllm"
        )
    return Path(found).absolute()


def vllm_command(program: Path, options: VllmOptions, port: int) -> list[str]:
    """Command line of a vLLM server that serves adapters of a run.

    Args:
        program: the ``vllm`` program.
        options: what the run needs.
        port: port to listen on.

    Raises:
        ConfigError: vLLM has no room for adapters of this rank.
    """
    rank = max_rank(options.rank)
    if rank is None:
        raise ConfigError(
            f"LoRA rank {options.rank} is larger than vLLM serves, {_RANKS[-1]}; set "
            "training.lora_rank to a smaller one"
        )
    # On a GPU a step of so many tokens would take gigabytes of memory from the keys and values.
    whole = ("--max-num-batched-tokens", str(max(WHOLE_PREFILLS, options.context)))
    return [
        *(str(program), "serve", str(options.model), "--served-model-name", options.name),
        *("--host", "127.0.0.1", "--port", str(port)),
        # The model's context, or as much of it as the memory holds.
        *("--dtype", options.dtype, "--max-model-len", "auto"),
        *("--max-num-seqs", "256"),
        *(() if _has_gpu() else whole),
        *("--enable-lora", "--max-lora-rank", str(rank), "--max-loras", str(options.max_loras)),
        *("--max-cpu-loras", str(2 * options.max_loras)),
        # Probabilities of the distribution that was sampled from, and no other sampling settings
        # than those of a request.
        *("--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"),
        # vLLM's default is every web page, and it loads adapters from any folder.
        *("--allowed-origins", "[]"),
        "--disable-uvicorn-access-log",  # a line for each request, in a file of the whole run
        *options.arguments,
    ]


def vllm_environment(environment: Mapping[str, str], command: Sequence[str] = ()) -> dict[str, str]:
    """The environment of a vLLM server.

    On a CPU vLLM would take nearly all memory for its keys and values, and not start where less
    is free; it gets a quarter of what is free, if nobody sets its size. It would also compute with
    as many threads as there are cores, and each layer would wait for the thread whose core its API
    server or the trainer uses; it gets one fewer. A GPU is not concerned.

    Args:
        environment: the environment of this process. Its own settings of vLLM are kept.
        command: the server's command line.
    """
    free_gib = psutil.virtual_memory().available >> 30
    settings = {} if _MEMORY.intersection(command) else {CPU_CACHE: f"{max(1, free_gib // 4)}"}
    if not _has_gpu():
        settings[THREADS] = f"{max(1, (os.cpu_count() or 1) - 1)}"
    settings |= {
        "DO_NOT_TRACK": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the trainer computes on the same cores
    }
    kept = {name: text for name, text in environment.items() if not name.startswith(_OURS)}
    return {**settings, **kept, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}


def _has_gpu() -> bool:
    return any(device.exists() for device in _GPUS)


def vllm_process(
    command: Command, *, log: Path, say: Callable[[str], object] = logger.info
) -> ServerProcess:
    """A vLLM server, with the environment that it needs here; see ``ServerProcess``.

    Args:
        command: see ``vllm_command``.
        log: receives its output.
        say: receives its progress while it starts.
    """
    return ServerProcess(
        command,
        log=log,
        program="vllm serve",
        environment=vllm_environment(os.environ, command(0)),
        say=say,
    )


_MEMORY = frozenset(("--gpu-memory-utilization", "--kv-cache-memory-bytes"))
_OURS = (  # beginnings of the names
    "LD_PRELOAD",  # a BLAS for the trainer's libraries; vLLM brings its own
    "PYTHONDONTWRITEBYTECODE",  # each of its processes would compile all its modules
    "PYTHONPATH",  # of another environment
    "VIRTUAL_ENV",
    # Of torchrun: vLLM's processes would look for each other where those of the trainer are.
    *("TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT"),
)
"""Variables that belong to this environment and not to vLLM's."""

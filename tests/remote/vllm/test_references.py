"""Reference log-probabilities from a real vLLM server without LoRA; one with LoRA is refused."""

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from reference_parity import check_equal_steps, moved_backend

from legos import TrainingConfig, load_model
from legos.errors import ConfigError
from legos.records.step import BackendConfig
from legos.remote.process import ServerProcess
from legos.wiring.model import apply_lora
from legos.wiring.references import reference_servers

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


def test_a_step_with_vllm_equals_one_with_its_own_reference(
    vllm_server: ServerProcess, start_vllm: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    plain = start_vllm("--no-enable-lora")
    model = load_model("builtin")
    apply_lora(model)
    backend = moved_backend(model.make_backend(BackendConfig(betas=(0.0, 0.95))))
    config = TrainingConfig(kl_coef=0.3, kl_server=(plain.url,))
    references = reference_servers(config, model, api_key=None)
    assert references is not None
    try:
        check_equal_steps(references, backend, tmp_path / "states")
        named = config.replace(kl_server_adapter="frozen")
        with pytest.raises(ConfigError, match=r"'frozen' but .* vLLM, .*`legos serve --adapter`"):
            reference_servers(named, model, api_key=None)
        wrong = config.replace(kl_server=(plain.url, vllm_server.url))
        with pytest.raises(ConfigError, match=r"vLLM with LoRA, .* without --enable-lora"):
            reference_servers(wrong, model, api_key=None)
        httpx.get(f"{vllm_server.url}/health", timeout=60).raise_for_status()  # it was not asked
    finally:
        references.close()
        model.close()
        plain.close()

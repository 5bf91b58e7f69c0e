"""The optimiser step of a plain loop of transformers and PEFT, as a program for another Python.

    PYTHON plain_trainer.py MODEL

loads the model with LoRA of rank 8 on all its layers, prints the name of the loop, and answers
every line ``{"rows": [[token ids, prompt length], ..], "count": 4}`` of its input with the seconds
and the peak bytes of one step on these rows, ``count`` rows at a time. It imports nothing of legos,
which need not be installed there.

The loop is what a short script does: rows padded to the longest of their block, the logits of every
token, a clipped policy loss on the answers, AdamW.
"""

import importlib
import importlib.util
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

__all__ = ["Memory"]

Rows = Sequence[tuple[Sequence[int], int]]
RANK, ALPHA, CLIP = 8, 32.0, 0.2


class Memory:
    """Peak memory of this process on its device, beyond what it held when this was made."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._held = torch.cuda.memory_allocated() if self._on_gpu else _resident("VmRSS")

    def begin(self) -> None:
        """Forget the peak so far."""
        if self._on_gpu:
            torch.cuda.reset_peak_memory_stats()
        else:
            Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, see proc(5)

    def peak_bytes(self) -> int:
        """Peak since ``begin``, in bytes: of torch's memory on a GPU, else of resident memory."""
        if self._on_gpu:
            torch.cuda.synchronize()
            return torch.cuda.max_memory_allocated() - self._held
        return _resident("VmHWM") - self._held


def _resident(field: str) -> int:
    """A number of bytes in Linux's account of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {field}; the bench measures memory on Linux")


def _block(rows: Rows, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Padded token ids [R, T], and [R, T] True at tokens, and at those of answers."""
    longest = max(len(tokens) for tokens, _ in rows)
    column = torch.arange(longest)
    token_ids = torch.tensor([[*tokens, *[0] * (longest - len(tokens))] for tokens, _ in rows])
    ends = torch.tensor([[len(tokens)] for tokens, _ in rows])
    prompts = torch.tensor([[prompt] for _, prompt in rows])
    present = column < ends
    return token_ids.to(device), present.to(device), (present & (column >= prompts)).to(device)


def _step(model: Any, optimiser: torch.optim.Optimizer, rows: Rows, count: int) -> None:
    total = sum(len(tokens) - prompt for tokens, prompt in rows)
    advantages = [1.0 - 2.0 * (number % 2) for number in range(len(rows))]
    for first in range(0, len(rows), count):
        token_ids, present, answers = _block(rows[first : first + count], model.device)
        advantage = torch.tensor(advantages[first : first + count], device=model.device)[:, None]
        logits = model(input_ids=token_ids, attention_mask=present.long(), use_cache=False).logits
        flat = logits[:, :-1].float().flatten(0, 1)
        logprobs = -cross_entropy(flat, token_ids[:, 1:].flatten(), reduction="none")
        ratio = (logprobs.view_as(token_ids[:, 1:]) + 1.0).exp()  # behaviour: -1 nat a token
        clipped = ratio.clamp(1.0 - CLIP, 1.0 + CLIP)
        gain = torch.minimum(ratio * advantage, clipped * advantage)
        (-(gain * answers[:, 1:]).sum() / total).backward()
    torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
    optimiser.step()
    optimiser.zero_grad()


def _with_lora(folder: Path) -> Any:
    """The model with LoRA on every linear module of its layers."""
    transformers: Any = importlib.import_module("transformers")
    peft: Any = importlib.import_module("peft")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", local_files_only=True
    ).to(device)
    lora = peft.LoraConfig(
        r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    return peft.get_peft_model(model, lora).train()


def _main(folder: str) -> None:
    if importlib.util.find_spec("peft") is None:
        raise SystemExit(f"{sys.executable} has no peft")
    model = _with_lora(Path(folder))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=1e-6)
    memory = Memory(model.device)
    _answer("transformers and peft")
    for line in sys.stdin:
        order = json.loads(line)
        memory.begin()
        started = time.perf_counter()
        _step(model, optimiser, order["rows"], order["count"])
        peak = memory.peak_bytes()
        _answer({"seconds": time.perf_counter() - started, "peak_bytes": peak})


def _answer(value: Any) -> None:
    sys.stdout.write(f"{json.dumps(value)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _main(sys.argv[1])

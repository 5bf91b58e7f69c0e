"""The arithmetic of many engines: bytes, rates, staleness, and where each design breaks.

``docs/scale.md`` explains the formulas, which ``legos.bench.simulated_line`` checks.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from legos.bench.simulated_line import Design

__all__ = ["Limits", "adapter_bytes", "engines_until", "limits_of", "publish_s", "staleness"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Samples per second that each part of a line allows; the smallest one is the line's."""

    engines: float
    trainer: float  # its device, and publishing, which the next step waits for
    process: float  # CPU time of the trainer's process, on one core
    publishing: float  # share of a step's time that its publication takes

    @property
    def samples_per_s(self) -> float:
        """The speed of the line."""
        return min(self.engines, self.trainer, self.process)

    @property
    def first(self) -> str:
        """The part that limits the line."""
        part = min(("engines", "trainer", "process"), key=lambda part: getattr(self, part))
        return "publication" if part == "trainer" and self.publishing > 1 / 2 else part


def adapter_bytes(rank: int, modules: Iterable[tuple[int, int]], *, number_bytes: int = 4) -> int:
    """Bytes of LoRA's arrays: rank x (inputs + outputs) numbers for each adapted module.

    Args:
        rank: inner dimension of every pair.
        modules: (inputs, outputs) of every adapted module.
        number_bytes: bytes of one number; the kit publishes float32.

    Source: LoRA, arXiv:2106.09685.
    """
    return number_bytes * rank * sum(inputs + outputs for inputs, outputs in modules)


def limits_of(design: Design, cpu_s: float, *, sample_tokens: float) -> Limits:
    """The speed that each part of a line allows.

    Args:
        design: the hardware.
        cpu_s: CPU seconds of the trainer's process for a sample.
        sample_tokens: mean tokens of a sample, those of its prompt included.
    """
    publishing_s = publish_s(design)
    step_s = design.samples * sample_tokens / design.trainer_tokens_per_s + publishing_s
    return Limits(
        engines=design.engines * design.rows / (design.answer_s(design.tokens) + design.tool_s),
        trainer=design.samples / step_s,
        process=math.inf if cpu_s == 0.0 else 1.0 / cpu_s,
        publishing=publishing_s / step_s,
    )


def publish_s(design: Design) -> float:
    """Seconds in which an adapter reaches all engines, and is loaded.

    It goes over the publisher's link, as a copy for each engine, or once to a shared file system.
    """
    written_s, rate = 0.0, design.link_bytes_per_s
    if design.store_bytes_per_s is not None:
        alone = min(design.link_bytes_per_s, design.engine_link_bytes_per_s)
        written_s, rate = design.adapter_bytes / alone, design.store_bytes_per_s
    read_s = design.adapter_bytes / min(rate / design.engines, design.engine_link_bytes_per_s)
    return written_s + read_s + design.load_s


def engines_until(design: Design, cpu_s: float, *, sample_tokens: float, share: float = 0.9) -> int:
    """The largest number of engines of which a line still uses a share; 0: not even one.

    The step grows with the engines, as it does where every row keeps its share of the step.

    Args:
        design: the hardware; its number of engines and groups is the ratio of the two.
        cpu_s: CPU seconds of the trainer's process for a sample.
        sample_tokens: mean tokens of a sample, those of its prompt included.
        share: of the engines' own speed.
    """

    def kept(engines: int) -> bool:
        limits = limits_of(design.scaled(engines), cpu_s, sample_tokens=sample_tokens)
        return limits.samples_per_s >= share * limits.engines

    low, high = 0, 1
    while kept(high) and high < 1 << 40:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if kept(middle) else (low, middle)
    return low


def staleness(design: Design, waiting_samples: float) -> float:
    """Versions by which the tokens of a sample are old when they are trained on, in the mean.

    Args:
        design: the hardware; what plays and what waits is the line.
        waiting_samples: samples in the buffer when a step begins, beyond those of the step.

    Source: Little's law: a step takes its samples from the line and makes one version.
    """
    return (design.most_plays + waiting_samples) / design.samples

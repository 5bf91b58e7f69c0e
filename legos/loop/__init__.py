"""Playing and training at the same time: queue, trainer, loop, evaluation."""

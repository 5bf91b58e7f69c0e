"""Play and train at the same time: the buffer, the trainer, the loop and the evaluation."""

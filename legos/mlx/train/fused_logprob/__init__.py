"""Log-probabilities and the loss straight from hidden states, without the logits of a step."""

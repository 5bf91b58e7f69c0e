"""From logits to tokens: penalties and bias, truncation, draws."""

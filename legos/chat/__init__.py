"""Convert messages to tokens and back; the only place that loads tokenizers."""

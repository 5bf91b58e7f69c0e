"""Linear attention in chunks of tokens: recurrent layers with bounded memory."""

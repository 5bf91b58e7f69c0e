"""The records that flow: messages, episodes, samples, batches."""

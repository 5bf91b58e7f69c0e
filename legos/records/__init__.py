"""The records that the parts exchange: messages, episodes, samples and batches."""

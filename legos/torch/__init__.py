"""The torch device: trains on CUDA or on the CPU; a server elsewhere generates.

- ``device``: gives the rest of legos models and backends
- ``model``: loads a model of transformers and splits it into trunk and head
- ``lora``: LoRA on the linear modules of a model
- ``arrays``: the array namespace of the losses, over torch
- ``passes``: packs the rows of a step without padding
- ``gradients``: what ``legos.device.backend`` needs of a device: the passes of a step
- ``ranks``: the processes that torchrun started, and their shards of the weights
"""

"""What is said of a model in which LoRA has no module to adapt."""

import pytest

from legos.errors import AdapterError
from legos.weights.fits import linear_shape


@pytest.mark.torch
def test_modules_that_take_no_lora_are_named() -> None:
    from torch import nn

    layer = nn.Sequential(nn.Conv1d(4, 4, 1), nn.LayerNorm(4))
    with pytest.raises(AdapterError, match="compute with Conv1d, which takes no LoRA; take a copy"):
        linear_shape([layer], None, linear=nn.Linear, rank=2, alpha=4.0)

"""How gradients change the policy: values out of range are refused."""

import math
from typing import Any

import pytest

from legos.errors import ConfigError
from legos.records.step import Update


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"learning_rate": math.nan}, r"learning_rate is nan; expected a number >= 0"),
        ({"max_grad_norm": 0.0}, r"max_grad_norm is 0\.0; expected more than 0"),
        ({"ema_decay": 1.0}, r"ema_decay is 1\.0; expected 0 or more, below 1"),
        ({"kl_refresh_steps": 0}, r"kl_refresh_steps is 0; expected at least 1 update"),
    ],
)
def test_values_out_of_range(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Update(**{"learning_rate": 0.1, **fields})

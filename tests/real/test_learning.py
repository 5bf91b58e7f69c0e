"""A real chat model learns: minutes each; run with ``pytest -m "real and learning"``.

docs/log/learning.md has the curves of these runs; the bounds here are wider than their three seeds.
"""

import pytest

pytestmark = [pytest.mark.real, pytest.mark.learning, pytest.mark.timeout(3600)]

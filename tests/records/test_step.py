"""How many tokens a pass has where no setting says it."""

from legos.records.step import micro_batch_tokens


def test_passes_suit_the_device_unless_they_are_given() -> None:
    assert micro_batch_tokens(None, on_cpu=False) == 4096
    assert micro_batch_tokens(None, on_cpu=True) == 512
    assert micro_batch_tokens(7, on_cpu=True) == 7

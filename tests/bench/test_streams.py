"""What the server's bench computes from the times of several streams."""

from collections.abc import Sequence

import pytest
from bench.clients import Answer, Body
from bench.rounds import Workload
from bench.streams import Streams, chat, growth

from legos.errors import EngineError


class Model:
    """Answers in a time that depends on the number of streams and on the prompts."""

    def __init__(self, *, step_s: float = 0.001) -> None:
        self.step_s = step_s

    def ask(self, bodies: Sequence[Body], *, gap_s: float = 0.0) -> list[Answer]:
        prompts = [len(body["messages"][0]["content"]) for body in bodies]
        first_s = 0.001 * sum(prompts)
        return [
            Answer(
                sent_s=gap_s * n,
                first_s=first_s,
                last_s=first_s + self.step_s * body["max_tokens"] * (1.05 if n else 1.0),
                num_tokens=body["max_tokens"],
            )
            for n, body in enumerate(bodies)
        ]


def streams(model: Model) -> Streams:
    return Streams(model.ask, Workload(0.0, quick=True), 100)


def test_no_two_requests_have_the_same_beginning() -> None:
    prompts = {chat(64, 4)["messages"][0]["content"][:7] for _ in range(100)}
    assert len(prompts) == 100
    assert len(chat(1536, 4)["messages"][0]["content"]) == 1536


def test_the_speed_of_streams_and_the_spread_of_their_ends() -> None:
    speeds, spread = streams(Model()).scaling()
    assert list(speeds) == [1, 2, 4, 8, 16, 32]
    assert speeds[1] == pytest.approx(100 / 0.164)
    assert spread == pytest.approx((2.048 + 0.105) / (2.048 + 0.1) - 1.0)


def test_growth_is_the_smallest_ratio_of_neighbours() -> None:
    assert growth([100.0, 200.0, 190.0, 400.0]) == 0.95


def test_mixed_prompts_are_compared_with_one_after_the_other() -> None:
    alone = 3 * 0.1 + 0.001 * (1536 + 384 + 64)
    assert streams(Model()).mixed() == pytest.approx((0.105 + 1.984) / alone)


def test_the_first_token_beside_another_stream() -> None:
    alone_s, busy_s, step_s = streams(Model(step_s=0.01)).first_token()
    assert alone_s == pytest.approx(0.064)
    assert busy_s == pytest.approx(5 * 0.064)
    assert step_s == pytest.approx(400 * 0.01 / 399)
    with pytest.raises(EngineError, match="ended before"):
        streams(Model(step_s=0.0)).first_token()

"""How a server treats several streams: total speed, equal shares, long prompts, first tokens."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, pairwise

from bench.clients import Answer, Ask, Body, speed
from bench.rounds import Workload

from legos.errors import EngineError

__all__ = ["CHAT", "Streams", "chat", "growth"]

CHAT = "/v1/chat/completions"
STREAMS = (1, 2, 4, 8, 16, 32)
PROMPT = 64  # characters, each of which is one token
LENGTHS = (1536, 384, 64)  # characters of a long, a middle and a short prompt
PROBES = 4  # requests while another stream is decoded
STEPS = 400  # tokens of that stream
_numbers = count()


def chat(length: int, max_tokens: int, *, model: str = "base") -> Body:
    """A streamed greedy request with a prompt that no other request begins with.

    Args:
        length: characters of the prompt.
        max_tokens: length of the answer; bench models never end earlier.
        model: name of the model in the request.
    """
    number = next(_numbers)
    text = f"{number:06d} " + "".join(chr(97 + (7 * n * (number + 3)) % 26) for n in range(length))
    return {
        "model": model,
        "messages": [{"role": "user", "content": text[:length]}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@dataclass(frozen=True, slots=True)
class Streams:
    """Measurements of one server.

    Attributes:
        ask: sends requests to ``CHAT``.
        work: the time of each measurement.
        tokens: length of an answer.
    """

    ask: Ask
    work: Workload
    tokens: int

    def together(self, num_streams: int) -> list[Answer]:
        """Equal streams that begin at once."""
        return self.ask([chat(PROMPT, self.tokens) for _ in range(num_streams)])

    def scaling(self) -> tuple[dict[int, float], float]:
        """Median tokens per second at each number of streams, and the spread of the largest.

        The spread is the median over the rounds of the last stream's time as a ratio to the first
        one's, less 1.
        """
        calls = [lambda n=n: self.together(n) for n in STREAMS]
        rounds = self.work.rounds(calls)
        speeds = {n: statistics.median(map(speed, every)) for n, every in _columns(rounds)}
        spreads = [_spread(answers) for *_, answers in rounds]
        return speeds, statistics.median(spreads)

    def mixed(self) -> float:
        """Time of a long, a middle and a short prompt at once, as a share of one by one."""

        def bodies() -> list[Body]:
            return [chat(length, self.tokens) for length in LENGTHS]

        pairs = self.work.in_turn(
            lambda: max(answer.last_s for answer in self.ask(bodies())),
            lambda: sum(self.ask([body])[0].last_s for body in bodies()),
        )
        return statistics.median(mixed / alone for mixed, alone in pairs)

    def first_token(self) -> tuple[float, float, float]:
        """Medians in seconds: the first token alone, with another stream, and its decode step."""
        rounds = self.work.in_turn(self._alone, self._disturbed)
        alone = [answer.first_s for answers, _ in rounds for answer in answers]
        busy = [answer.first_s for _, (_, *answers) in rounds for answer in answers]
        steps = [other.step_s for _, (other, *_) in rounds]
        return statistics.median(alone), statistics.median(busy), statistics.median(steps)

    def _alone(self) -> list[Answer]:
        return [self.ask([chat(PROMPT, 2)])[0] for _ in range(PROBES)]

    def _disturbed(self) -> list[Answer]:
        """The stream that is decoded, and the requests that come meanwhile."""
        probes = [chat(PROMPT, 2) for _ in range(PROBES)]
        answers = self.ask([chat(PROMPT, STEPS), *probes], gap_s=0.05)
        if answers[0].last_s < answers[-1].sent_s + answers[-1].first_s:
            raise EngineError("the other stream ended before the last first token; measure again")
        return answers


def growth(speeds: Sequence[float]) -> float:
    """The smallest ratio of neighbours: 1 or more if each is at least as large as the last."""
    return min(after / before for before, after in pairwise(speeds))


def _columns(
    rounds: Sequence[Sequence[list[Answer]]],
) -> list[tuple[int, list[list[Answer]]]]:
    """Number of streams -> the answers of every round."""
    return [(n, [each[i] for each in rounds]) for i, n in enumerate(STREAMS)]


def _spread(answers: Sequence[Answer]) -> float:
    ended = [answer.sent_s + answer.last_s for answer in answers]
    return max(ended) / min(ended) - 1.0

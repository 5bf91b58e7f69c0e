"""Reference log-probabilities of samples, computed by servers in place of the trainer.

Many samples of games are equal, and only different ones are sent.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import chain, compress

import numpy as np
from msgspec.structs import replace

from legos.errors import EngineError, RequestError, TrainerError
from legos.losses.softmax import log_softmax
from legos.records.batch import row_blocks
from legos.records.names import BASE
from legos.records.sample import Sample
from legos.remote.engine import RemoteEngine

ROWS = 16  # of one request, so that the servers share the samples of a step
TOKENS = 8192  # of one request with several rows, padded; a slow server scores these in its time
LISTS = 2  # requests at a server, which works on all of them in turns within one time limit
_Row = tuple[int, ...]
_Asked = tuple[_Row, tuple[_Row, ...]]
"""A prompt, and the answers after it."""


class ReferenceServers:
    """Fills in the reference log-probabilities of samples; the least busy server computes them.

    A sample is scored token by token. Where only legal tokens could be sampled, they are scored at
    each of its positions, and normalised at its temperature.
    """

    def __init__(self, engine: RemoteEngine, *, num_vocabulary: int) -> None:
        """Take over the servers.

        Args:
            engine: asks them.
            num_vocabulary: samples with larger token ids are left as they are, and the trainer
                leaves them out.
        """
        self._engine, self._names = engine, ", ".join(server.name for server in engine.servers)
        self._num_vocabulary = num_vocabulary
        self._places = asyncio.Semaphore(LISTS * len(engine.servers))

    def __call__(self, samples: Sequence[Sample]) -> "Future[list[Sample]]":
        """The samples with reference log-probabilities; those that have them are not asked for.

        The future raises ``EngineError`` where no server answers, and ``TrainerError`` where one
        refuses, or where a sample was drawn from all tokens at another temperature than 1.
        """
        return self._engine.call(self._filled(samples))

    def close(self) -> None:
        """Close the connections."""
        self._engine.close()

    async def _filled(self, samples: Sequence[Sample]) -> list[Sample]:
        lacking = [*map(self._lacks, samples)]
        missing = [*compress(samples, lacking)]
        for sample in missing:
            if sample.temperature != 1.0 and not sample.restricted:
                raise TrainerError(
                    f"a sample of {sample.group!r} has temperature {sample.temperature:g}, and "
                    f"{self._names} score tokens at temperature 1; sample at 1, or leave "
                    "training.kl_server out"
                )
        free = dict.fromkeys(_row(sample) for sample in missing if not sample.restricted)
        nodes = dict.fromkeys(
            node for sample in missing if sample.restricted for node in _nodes(sample)
        )
        try:
            found = await self._scores(list(free), by_token=True)
            found |= await self._scores([n for n in nodes if len(n[1]) > 1], by_token=False)
        except RequestError as error:
            raise TrainerError(
                f"the servers of training.kl_server refuse to score a sample: {error}"
            ) from error
        except EngineError as error:
            raise EngineError(
                f"no server of training.kl_server computes reference log-probabilities ({error}); "
                "start one again and resume the run, or resume it without training.kl_server"
            ) from error
        return [
            replace(sample, reference_logprobs=_reference(sample, found)) if lacks else sample
            for sample, lacks in zip(samples, lacking, strict=True)
        ]

    def _lacks(self, sample: Sample) -> bool:
        known = sample.reference_logprobs is not None
        largest: int = max(map(max, filter(None, (sample.token_ids, *sample.legal))))
        return not known and largest < self._num_vocabulary

    async def _scores(
        self, asked: Sequence[_Asked], *, by_token: bool
    ) -> dict[_Asked, Sequence[float]]:
        def length(one: _Asked) -> int:
            return len(one[0]) + sum(map(len, one[1]))

        lists = (asked[start : start + ROWS] for start in range(0, len(asked), ROWS))
        parts = [part for rows in lists for part in row_blocks(rows, TOKENS, length=length)]

        async def scored(part: Sequence[_Asked]) -> Sequence[Sequence[float]]:
            async with self._places:
                score = self._engine.score(part, end_ids=(), adapter=BASE, by_token=by_token)
                return await asyncio.wrap_future(score)

        found = await asyncio.gather(*map(scored, parts))
        return dict(zip(chain(*parts), chain(*found), strict=True))


def _row(sample: Sample) -> _Asked:
    """The tokens before the first chosen one, and those up to the last one."""
    first, last = sample.positions[0], sample.positions[-1]
    return sample.token_ids[:first], (sample.token_ids[first : last + 1],)


def _nodes(sample: Sample) -> Iterator[_Asked]:
    """The tokens before each chosen one, and the legal tokens there."""
    for position, legal in zip(sample.positions, sample.legal, strict=True):
        yield sample.token_ids[:position], tuple((token,) for token in legal)


def _reference(sample: Sample, found: Mapping[_Asked, Sequence[float]]) -> tuple[float, ...]:
    """[A] nats of the chosen tokens."""
    if not sample.restricted:
        scores = found[_row(sample)]
        return tuple(scores[at - sample.positions[0]] for at in sample.positions)
    values: list[float] = []
    for position, node in zip(sample.positions, _nodes(sample), strict=True):
        logits = np.array(found.get(node, (0.0,))) / sample.temperature
        legal = node[1].index((sample.token_ids[position],))
        values.append(float(log_softmax(np, logits)[legal]))
    return tuple(values)

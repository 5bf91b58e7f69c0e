"""Conversations of a real model: one sample each, whose tokens are exactly those sampled."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import pytest
from here_and_http import here_and_http
from vocabulary import END, token_id

from legos import Arena, OpenAIClient, RAECredit, Task
from legos.chat.reply import split_thinking
from legos.play.table import Table
from legos.protocols import Client
from legos.records.group import Group
from legos.records.message import Completion

STRIPS = (  # as Qwen3's: thinking of former turns is left out, and a line ends every turn
    "{%- for m in messages %}"
    "{{- '<|' + m['role'] + '|>' + m['content'].split('</think>')[-1] + '<|end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|><think>' }}{%- endif %}"
)
THOUGHTS = tuple(f"{thought}</think>{answer}" for thought in ("so", "hmm") for answer in "123")


class Talk(Arena):
    """Five questions; every answer thinks first, or ends wherever it is cut."""

    tasks_per_step = 3
    group_size = 2
    illegal = "random"  # no answer without its thinking is one of the choices

    def __init__(self, *arguments: Any, cut: Mapping[str, Any] | None = None) -> None:
        super().__init__(*arguments, credit_assigner=RAECredit())
        self.cut = cut
        self.restrict_choices = cut is None

    def tasks(self, rng: Any) -> Iterable[Task]:
        return (Task(id=f"t{number}") for number in range(3))

    async def play(self, t: Table) -> Mapping[str, float]:
        for turn in range(5):
            if turn % 2:
                t.tell(f"news {turn}")
            if self.cut is None:
                await t.ask("player", f"Q{turn}?", choices=THOUGHTS)
            else:
                await t.ask("player", f"Q{turn}?", **self.cut)
        return {"player": 1.0}


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Client]]:
    """One engine, asked in this process and over HTTP."""
    with here_and_http(tmp_path_factory.mktemp("thinker"), STRIPS) as found:
        yield found


def played(arena: Arena) -> Group:
    async def go() -> Group:
        batch = await arena.step(concurrency=6)
        if isinstance(arena.client, OpenAIClient):
            await arena.client.aclose()
        return batch

    return asyncio.run(go())


def completions(batch: Group) -> list[list[Completion]]:
    return [[turn.completion for turn in e.rollouts[0].turns] for e in batch.episodes]


@pytest.mark.parametrize("way", ["engine", "http"])
def test_five_turns_with_a_template_that_strips_thinking_are_one_sample(
    way: str, clients: Mapping[str, Client]
) -> None:
    batch = played(Talk(clients[way]))
    assert [episode.error for episode in batch.episodes] == [None] * 6
    assert batch.metrics["arena/token_breaks"] == 0.0
    assert len(batch.samples) == 6
    for sample, said in zip(batch.samples, completions(batch), strict=True):
        assert len(said) == 5
        assert all("</think>" in one.text for one in said)
        chosen = tuple(sample.token_ids[p] for p in sample.positions)
        assert chosen == sum((one.token_ids for one in said), ())
        assert sample.logprobs == sum((one.logprobs for one in said), ())
        assert sample.token_ids == said[-1].prompt_ids + said[-1].token_ids


def test_what_is_asked_over_http_is_what_is_asked_in_this_process(
    clients: Mapping[str, Client],
) -> None:
    here, there = (completions(played(Talk(clients[way]))) for way in ("engine", "http"))
    assert [[(c.prompt_ids, c.token_ids, c.versions) for c in play] for play in here] == [
        [(c.prompt_ids, c.token_ids, c.versions) for c in play] for play in there
    ]


@pytest.mark.parametrize("way", ["engine", "http"])
def test_where_it_is_chosen_every_prompt_is_rendered_again_and_breaks_are_counted(
    way: str, clients: Mapping[str, Client]
) -> None:
    talk = Talk(clients[way])
    talk.continue_tokens = False
    batch = played(talk)
    assert batch.metrics["arena/token_breaks"] == 6 * 4
    assert len(batch.samples) == 6 * 5


@pytest.mark.parametrize("way", ["engine", "http"])
@pytest.mark.parametrize(
    "cut", [{"max_tokens": 3}, {"max_tokens": 40, "stop": list("etaoinshrdlu ")}]
)
def test_the_end_of_a_turn_that_was_cut_is_seen_and_not_trained_on(
    way: str, cut: dict[str, Any], clients: Mapping[str, Client]
) -> None:
    end, line = token_id(END), token_id("\n")
    batch = played(Talk(clients[way], cut=cut))
    cuts = 0
    for sample, said in zip(batch.samples, completions(batch), strict=True):
        assert tuple(sample.token_ids[p] for p in sample.positions) == sum(
            (one.token_ids for one in said), ()
        )
        for one, after in pairwise(said):
            so_far = one.prompt_ids + one.token_ids
            assert after.prompt_ids[: len(so_far)] == so_far
            was_cut = one.token_ids[-1] != end
            cuts += was_cut
            expected = (end, line) if was_cut else (line,)
            assert after.prompt_ids[len(so_far) :][: len(expected)] == expected
            assert len(so_far) not in sample.positions
    assert cuts > 12
    assert batch.metrics["arena/token_breaks"] == 0.0


@pytest.mark.parametrize("way", ["engine", "http"])
def test_thinking_that_was_cut_off_is_no_answer(way: str, clients: Mapping[str, Client]) -> None:
    plays = completions(played(Talk(clients[way], cut={"max_tokens": 3})))
    said = [one for play in plays for one in play]
    assert any(split_thinking(one.text)[0] for one in said)
    assert [split_thinking(one.text)[1] for one in said] == [""] * len(said)


def test_nothing_after_a_stop_text_is_in_the_completion(clients: Mapping[str, Client]) -> None:
    stops = list("etaoinshrdlu ")
    batch = played(Talk(clients["engine"], cut={"max_tokens": 40, "stop": stops}))
    stopped = [one for said in completions(batch) for one in said if one.finish_reason == "stop"]
    assert any(one.token_ids[-1] in map(token_id, stops) for one in stopped)
    for one in stopped:
        assert not any(token in map(token_id, stops) for token in one.token_ids[:-1])

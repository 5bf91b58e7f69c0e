"""The table: what reaches a seat, what is recorded, and what an illegal answer costs."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from legos.arena.answer import Reply
from legos.arena.arena import Arena
from legos.arena.endings import Draw, Forfeit, Void
from legos.errors import ArenaError, RequestError
from legos.fakes import Asked, ScriptedClient
from legos.play.step import play_all
from legos.play.table import Table
from legos.protocols import Seat
from legos.records.episode import Episode, Task
from legos.records.message import Completion, Message, Sampling

ROLES = ("ann", "bob", "cat")
Play = Callable[[Table], Awaitable[Any]]


class Room(Arena):
    """Three seats, each with a client of its own, and a play that is handed in."""

    roles: tuple[str, ...] = ROLES

    def __init__(
        self,
        play: Play,
        answers: Mapping[str, Sequence[str] | Callable[[Asked], str]],
        **attributes: Any,
    ) -> None:
        super().__init__()
        self.clients = {role: ScriptedClient(answers.get(role, ())) for role in ROLES}
        self._play = play
        for name, value in attributes.items():
            setattr(self, name, value)

    def seats(self, task: Task) -> Mapping[str, Seat]:
        return {role: Seat(role=role, client=client) for role, client in self.clients.items()}

    async def play(self, t: Table) -> Mapping[str, float]:
        return await self._play(t) or dict.fromkeys(ROLES, 0.0)

    def go(self, seed: int = 0) -> Episode:
        async def once() -> Episode:
            return (await play_all(self, [(Task(id="task"), seed)], asyncio.Semaphore(1)))[0]

        return asyncio.run(once())

    def heard(self, role: str) -> str:
        """Everything that reached a seat, as one text."""
        messages = [m for asked in self.clients[role].asked for m in asked.messages]
        return "\n".join(message.content for message in messages)


def same(answer: str) -> Callable[[Asked], str]:
    return lambda _: answer


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("tell"), st.sets(st.sampled_from(ROLES), min_size=1)),
        st.tuples(st.just("ask"), st.sampled_from(ROLES)),
        st.tuples(st.just("ask_all"), st.sets(st.sampled_from(ROLES), min_size=1)),
        st.tuples(st.just("note"), st.none()),
    ),
    max_size=12,
)


@given(OPERATIONS, st.booleans())
def test_no_canary_reaches_a_seat_that_it_was_not_meant_for(
    operations: list[tuple[str, Any]], remember: bool
) -> None:
    """Each text that goes in carries a canary of its own, and so does each thought and answer."""
    meant: dict[str, set[str]] = {}  # canary -> roles that may read it
    told: dict[str, set[str]] = {role: set() for role in ROLES}  # canaries a role must have read

    def canary(*roles: str) -> str:
        name = f"<{len(meant)}>"
        meant[name] = set(roles)
        return name

    def speak(role: str) -> Callable[[Asked], str]:
        return lambda _: f"<think>{canary()}</think>said {canary(role)}"

    async def play(t: Table) -> None:
        for operation, who in operations:
            if operation == "tell":
                name = canary(*who)
                t.tell(name, to=sorted(who))
                for role in who:
                    told[role].add(name)
            elif operation == "ask":
                await t.ask(who, canary(who))
            elif operation == "ask_all":
                await t.ask_all({role: canary(role) for role in sorted(who)})
            else:
                t.note(canary())
        for role in ROLES:
            await t.ask(role, canary(role))

    system = {role: canary(role) for role in ROLES[:2]}
    room = Room(play, {role: speak(role) for role in ROLES}, remember=remember, system=system)
    episode = room.go()
    assert episode.error is None
    for role in ROLES:
        heard = room.heard(role)
        read = {name for name in meant if name in heard}
        assert all(role in meant[name] for name in read)
        assert told[role] <= read
        if role in system:
            assert all(a.messages[0].content == system[role] for a in room.clients[role].asked)


def test_simultaneous_questions_are_all_asked_before_any_is_answered() -> None:
    order: list[str] = []

    def answer(role: str) -> Callable[[Asked], str]:
        def said(_: Asked) -> str:
            order.append(role)
            return f"I am {role}"

        return said

    async def play(t: Table) -> None:
        replies = await t.ask_all({"bob": "who?", "ann": "and you?"})
        assert list(replies) == ["bob", "ann"]
        assert {role: reply.text for role, reply in replies.items()} == {
            "bob": "I am bob",
            "ann": "I am ann",
        }
        await t.ask_all({"ann": "again?", "bob": "again?"})

    room = Room(play, {role: answer(role) for role in ROLES})
    episode = room.go()
    assert episode.error is None
    assert order == ["bob", "ann", "ann", "bob"]
    turns = sorted((turn.order, each.role) for each in episode.rollouts for turn in each.turns)
    assert turns == list(enumerate(order))
    assert "bob" not in room.heard("ann")
    assert "ann" not in room.heard("bob")


class Late(ScriptedClient):
    """Takes its time."""

    async def complete(self, *args: Any, **options: Any) -> Completion:
        for _ in range(5):
            await asyncio.sleep(0)
        return await super().complete(*args, **options)


def test_a_forfeit_among_simultaneous_answers_waits_for_the_others() -> None:
    async def play(t: Table) -> None:
        await t.ask_all({"ann": "?", "bob": "?", "cat": "?"}, choices=["yes", "no"])

    room = Room(play, {"bob": same("maybe")})
    room.clients |= {"ann": Late(same("yes")), "cat": Late(same("perhaps"))}
    episode = room.go()
    assert episode.error is None
    assert episode.rewards == {"ann": 0.0, "bob": -1.0, "cat": 0.0}
    assert [len(rollout.turns) for rollout in episode.rollouts] == [1, 1, 1]


def test_a_seat_remembers_questions_answers_and_what_it_was_told() -> None:
    async def play(t: Table) -> None:
        t.tell("news")
        await t.ask("ann", "first?")
        t.tell("more", to="ann")
        await t.ask("ann", "second?")

    room = Room(play, {"ann": ["<think>hm</think>one", "two"]}, system={"ann": "You are ann."})
    room.go()
    assert room.clients["ann"].asked[-1].messages == (
        Message("system", "You are ann."),
        Message("user", "news"),
        Message("user", "first?"),
        Message("assistant", "one"),
        Message("user", "more"),
        Message("user", "second?"),
    )


def test_without_memory_only_what_was_told_stays() -> None:
    async def play(t: Table) -> None:
        t.tell("rules")
        await t.ask("ann", "first?")
        await t.ask("ann", "second?")

    room = Room(play, {"ann": same("yes")}, remember=False)
    room.go()
    assert room.clients["ann"].asked[-1].messages == (
        Message("user", "rules"),
        Message("user", "second?"),
    )


def test_a_reply_says_all_that_was_said() -> None:
    replies: list[Reply] = []

    async def play(t: Table) -> None:
        replies.append(await t.ask("ann", "?"))
        replies.append(await t.ask("ann", "?", choices=["4", "5"]))
        replies.append(await t.ask("ann", "?", parse=int))
        replies.append(await t.ask("ann", "?", max_tokens=3))

    room = Room(play, {"ann": ["<think>deep</think> so ", "[4] it is", " 12", "too long"]})
    episode = room.go()
    free, move, number, cut = replies
    assert (free.thinking, free.answer, free.move) == ("deep", "so", None)
    assert free.text == "<think>deep</think> so "
    assert (move.move, move.parsed, move.truncated) == ("4", "4", False)
    assert (number.move, number.parsed) == ("12", 12)
    assert (cut.text, cut.truncated) == ("too", True)
    assert [turn.move for turn in episode.rollouts[0].turns] == [None, "4", "12", None]
    completions = [turn.completion for turn in episode.rollouts[0].turns]
    assert completions == [reply.completion for reply in replies]


def test_what_is_asked_reaches_the_sampling() -> None:
    async def play(t: Table) -> None:
        await t.ask("ann", "?", choices=["a"], max_tokens=7, stop=["\n"])
        await t.ask("ann", "?", choices=["a"], stop="\n\n")
        await t.ask("ann", "?")

    room = Room(play, {"ann": same("a")})
    room.restrict_choices = True
    room.go()
    first, longest, second = (
        replace(asked.sampling, seed=0) for asked in room.clients["ann"].asked
    )
    assert first == Sampling(choices=("a",), restrict=True, max_tokens=7, stop=("\n",))
    assert longest == Sampling(choices=("a",), restrict=True, max_tokens=None, stop=("\n\n",))
    assert second == Sampling()


def test_an_illegal_answer_forfeits() -> None:
    async def play(t: Table) -> None:
        await t.ask("bob", "?", choices=["1", "2"])

    episode = Room(play, {"bob": same("3")}).go()
    assert episode.rewards == {"ann": 0.0, "bob": -1.0, "cat": 0.0}
    assert episode.notes == ("bob forfeits: '3' is not one of: 1, 2.",)
    assert episode.metrics == {"forfeit": 1.0}
    assert len(episode.rollouts[1].turns) == 1


def test_an_illegal_answer_is_asked_again_with_the_reason() -> None:
    async def play(t: Table) -> None:
        reply = await t.ask("bob", "Move?", choices=["1", "2"])
        assert reply.move == "2"

    room = Room(play, {"bob": ["3", "x", "2"]}, illegal="retry", remember=False)
    episode = room.go()
    assert episode.error is None
    assert [asked.prompt for asked in room.clients["bob"].asked] == [
        "Move?",
        "'3' is not one of: 1, 2. Answer again.\nMove?",
        "'x' is not one of: 1, 2. Answer again.\nMove?",
    ]
    assert [turn.move for turn in episode.rollouts[1].turns] == [None, None, "2"]


@pytest.mark.parametrize(
    ("illegal", "retries", "asked"),
    [("retry", None, 3), ("retry", 0, 1), ("retry", 1, 2), ("random", 1, 1), ("forfeit", 1, 1)],
)
def test_after_its_tries_a_seat_forfeits(illegal: str, retries: int | None, asked: int) -> None:
    async def play(t: Table) -> None:
        await t.ask("bob", "?", parse=int, retries=retries)

    room = Room(play, {"bob": same("x")}, illegal=illegal)
    episode = room.go()
    assert episode.rewards["bob"] == -1.0
    assert len(room.clients["bob"].asked) == asked
    assert "was not understood: invalid literal for int()" in episode.notes[0]


def test_a_random_legal_move_takes_the_place_of_an_illegal_one() -> None:
    moves: list[str] = []

    async def play(t: Table) -> None:
        for _ in range(200):
            reply = await t.ask("bob", "?", choices=["1", "2", "3"])
            assert reply.parsed == reply.move
            moves.append(reply.move or "")

    room = Room(play, {"bob": same("x")}, illegal="random", remember=False)
    assert room.go(seed=1).error is None
    first = list(moves)
    assert all(40 < first.count(move) < 95 for move in ("1", "2", "3"))
    moves.clear()
    room.go(seed=1)
    assert moves == first
    moves.clear()
    room.go(seed=2)
    assert moves != first


@pytest.mark.parametrize(
    ("ending", "rewards", "note"),
    [
        (Draw("repetition"), {"ann": 0.0, "bob": 0.0, "cat": 0.0}, "draw: repetition"),
        (Forfeit("cat"), {"ann": 0.0, "bob": 0.0, "cat": -1.0}, "cat forfeits"),
        (Void("no such word"), {}, "void: no such word"),
    ],
)
def test_endings(ending: Exception, rewards: dict[str, float], note: str) -> None:
    async def play(t: Table) -> None:
        await t.ask("ann", "?")
        raise ending

    episode = Room(play, {"ann": same("a")}).go()
    assert (episode.rewards, episode.notes, episode.error) == (rewards, (note,), None)
    assert episode.void == isinstance(ending, Void)
    assert len(episode.rollouts[0].turns) == 1


def test_rewards_of_a_turn_add_up_on_the_latest_one() -> None:
    async def play(t: Table) -> None:
        await t.ask("ann", "?")
        await t.ask("ann", "?")
        t.reward("ann", 0.5)
        t.reward("ann", -2.0)

    episode = Room(play, {"ann": same("a")}).go()
    assert [turn.reward for turn in episode.rollouts[0].turns] == [None, -1.5]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: t.tell("x", to="bop"), "no role 'bop' at this table; did you mean 'bob'"),
        (lambda t: t.reward("ann", 1.0), "before 'ann' was asked anything"),
    ],
)
def test_misuse_is_named(call: Callable[[Table], None], message: str) -> None:
    async def play(t: Table) -> None:
        call(t)

    with pytest.raises(ArenaError) as raised:
        Room(play, {}).go()
    assert message in str(raised.value)


def test_a_request_that_cannot_be_served_fails_the_play_alone() -> None:
    def refuse(_: Asked) -> str:
        raise RequestError("too long")

    async def play(t: Table) -> None:
        await t.ask("ann", "?")

    assert "RequestError: too long" in (Room(play, {"ann": refuse}).go().error or "")


def seeds(room: Room) -> dict[str, list[int]]:
    return {role: [a.sampling.seed for a in c.asked] for role, c in room.clients.items()}


def test_a_seats_draws_do_not_depend_on_what_others_are_asked() -> None:
    async def alone(t: Table) -> None:
        for _ in range(3):
            await t.ask("cat", "?")

    async def among_others(t: Table) -> None:
        await t.ask("ann", "?")
        await t.ask_all({"bob": "?", "cat": "?"})
        await t.ask("cat", "?")
        await t.ask("bob", "?")
        await t.ask("cat", "?")

    answers = {role: same("a") for role in ROLES}
    few, many = Room(alone, answers), Room(among_others, answers)
    few.go(seed=5)
    many.go(seed=5)
    assert seeds(few)["cat"] == seeds(many)["cat"]
    drawn = [seed for of_role in seeds(many).values() for seed in of_role]
    assert len(set(drawn)) == len(drawn) == 6
    other = Room(among_others, answers)
    other.go(seed=6)
    assert not set(drawn) & {seed for of_role in seeds(other).values() for seed in of_role}


def test_a_play_has_random_numbers_of_its_own() -> None:
    found: list[list[float]] = []

    async def play(t: Table) -> None:
        found.append([t.rng.random(), t.rng.random()])

    room = Room(play, {})
    for seed in (1, 1, 2):
        room.go(seed)
    assert found[0] == found[1] != found[2]

"""Games state their rules and the form of an answer to models that do not know them."""

import asyncio
from typing import Any

import pytest

from arenas.kuhn import Kuhn
from legos import GameArena, make_arena
from legos.apps.imitate import SETTINGS
from legos.arena.cursor import plays_from
from legos.arena.game import Game
from legos.arena.registry import CHAT_GAMES, CHAT_TEXT, advice, known_arenas
from legos.builtin import BUILTIN, builtin_path
from legos.config.play import PlayConfig
from legos.config.resolve import resolve
from legos.errors import ConfigError
from legos.fakes import Asked, ScriptedClient
from legos.loop.evaluation import ArenaEvaluation
from legos.play.step import play_all

GAMES = [name for name, kind in known_arenas().items() if issubclass(kind, Game)]
FORM = "Answer with one of them and nothing else."


def asked_of(name: str, model: str, **options: Any) -> list[Asked]:
    """The questions of a play with the settings that the arena recommends for a model."""
    overrides = {"arena": name, "model": model, **options}
    config = resolve(overrides=overrides, recommend=advice).config
    client = ScriptedClient(lambda asked: asked.sampling.choices[0])
    arena = make_arena(name, client, play=config.play)
    asyncio.run(play_all(arena, plays_from(arena, 1, 1), asyncio.Semaphore(1)))
    return list(client.asked)


@pytest.mark.parametrize("name", GAMES)
def test_every_game_states_its_rules_to_a_chat_model(name: str) -> None:
    for asked in asked_of(name, "org/chat-model"):
        system, question = asked.messages
        assert (system.role, question.role) == ("system", "user")
        assert len(system.content) > 100
        assert system.content.endswith(FORM)
        assert asked.sampling.restrict


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("model", [BUILTIN, str(builtin_path())], ids=["name", "folder"])
def test_the_built_in_model_is_asked_its_bare_positions(name: str, model: str) -> None:
    for asked in asked_of(name, model):
        assert [message.role for message in asked.messages] == ["user"]


def test_settings_win_over_what_is_recommended() -> None:
    options = {"play.rules": False, "play.restrict_choices": False}
    [first, *_] = asked_of("kuhn", "org/chat-model", **options)
    assert [message.role for message in first.messages] == ["user"]
    assert not first.sampling.restrict


def test_a_chat_model_gets_what_keeps_a_game_mixed_and_no_rate_of_the_builtin_one() -> None:
    kuhn, nim = advice("kuhn", "org/chat-model"), advice("nim", "org/chat-model")
    assert kuhn["training.ema_kl_coef"] == Kuhn.recommended["training.ema_kl_coef"]
    assert "training.learning_rate" not in kuhn
    end = Kuhn.recommended["training.entropy_coef_end"]
    assert kuhn["training.entropy_coef"] == kuhn["training.entropy_coef_end"] == end
    assert CHAT_GAMES.items() <= nim.items()
    assert not [key for key in (*kuhn, *nim) if key.startswith("loop.")]


def test_the_rate_falls_in_arenas_of_text_and_stays_in_games() -> None:
    assert CHAT_TEXT.items() <= advice("countdown", "org/chat-model").items()
    for arena, model in (("nim", "org/chat-model"), ("countdown", str(builtin_path()))):
        assert not CHAT_TEXT.keys() & advice(arena, model).keys()
    given = resolve(overrides={"arena": "sums", "model": "org/chat-model"}, recommend=advice)
    assert given.config.training.learning_rate_end_fraction == 0.1
    assert given.sources["training.learning_rate_end_fraction"] == "arena sums"
    imitated = advice(str(SETTINGS["arena"]), "org/chat-model")
    assert imitated["training.learning_rate_end_fraction"] == 1.0


@pytest.mark.parametrize("chosen", [{}, {"generation.thinking": "off"}])
def test_answers_are_imitated_with_the_thinking_of_the_chat_template(
    chosen: dict[str, object],
) -> None:
    asked = {**SETTINGS, "model": "org/chat-model", **chosen}
    given = resolve(overrides=asked, recommend=advice).config.generation.thinking
    assert given == ("off" if chosen else "default")


def test_an_exact_evaluation_asks_what_plays_ask() -> None:
    scored: set[Any] = set()

    class Scored(ScriptedClient):
        async def score(self, prompts: Any, **_: Any) -> Any:
            scored.update(tuple(messages) for messages, _ in prompts)
            return [[-1.0] * len(choices) for _, choices in prompts]

    client = Scored([])
    arena = make_arena("kuhn", client, play=PlayConfig(rules=True))
    assert isinstance(arena, GameArena)
    asyncio.run(ArenaEvaluation(arena, client).metrics())
    assert {one.messages for one in asked_of("kuhn", "org/chat-model")} <= scored


def test_an_arena_that_is_no_game_states_no_rules() -> None:
    assert "play.rules" not in advice("countdown", "org/chat-model")
    with pytest.raises(ConfigError, match=r"play.rules is true but arena 'countdown' is no game"):
        make_arena("countdown", ScriptedClient([]), play=PlayConfig(rules=True))


def test_a_game_without_rules_is_named(caplog: pytest.LogCaptureFixture) -> None:
    class Bare(Game):
        roles = ("one",)

        def starts(self) -> Any:
            return [(0, 1.0)]

        def turn(self, state: int) -> str | None:
            return None if state else "one"

        def view(self, state: int, role: str) -> str:
            return "Bare."

        def legal(self, state: int, role: str) -> Any:
            return ("1",)

        def play(self, state: int, move: str) -> int:
            return 1

        def payoff(self, state: int) -> Any:
            return {"one": 1.0}

    arena = GameArena(Bare, ScriptedClient([]))
    arena.state_rules()
    assert "game 'bare' has no rules to state" in caplog.text
    assert arena.system["one"].endswith(FORM)

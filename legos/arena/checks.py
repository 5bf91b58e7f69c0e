"""Check the values that a user's arena returns; each error says what to write instead."""

import inspect
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any, TypeGuard, cast, get_args

from legos.arena.answer import Reply
from legos.arena.game import Utility
from legos.arena.playable import IllegalMove, Playable
from legos.errors import AdapterError, ArenaError, did_you_mean, user_code
from legos.protocols import Seat
from legos.records.episode import Task
from legos.records.message import Message
from legos.records.numbers import MAX_REWARD, brief, checked_reward, number, reward_range, shown
from legos.weights.adapter import checked_name

ILLEGAL = get_args(IllegalMove)
UTILITIES = get_args(Utility)
METHODS = ("tasks(self, rng)", "held_out(self, rng)", "seats(self, task)", "play(self, t)")


def check_attributes(arena: Playable) -> None:
    """Check the attributes and methods of an arena.

    Raises:
        ArenaError: one is invalid; the message names it and says what to write.
    """
    kind, given = type(arena), vars(arena)
    if "cursor" not in given:
        raise ArenaError(
            f"{kind.__name__}.__init__ does not call super().__init__(client, credit_assigner=..., "
            "temperature=..., seed=...); take these arguments and pass them on"
        )
    name = f"arena {arena.name!r}"
    check_names(arena.roles, f"roles of {name}")
    check_names(arena.policies, f"policies of {name}")
    _check_policies(arena.policies, f"policies of {name}")
    if arena.levels:
        check_names(arena.levels, f"levels of {name}")
    for field, values in (("illegal", ILLEGAL), ("utility", UTILITIES)):
        value = getattr(arena, field)
        if value not in values and not (field == "utility" and value is None):
            raise ArenaError(f"{field} of {name} is {value!r}{did_you_mean(str(value), values)}")
    _check_numbers(arena, name)
    system: Any = arena.system
    _check(
        isinstance(system, Mapping),
        f"system of {name} is {shown(system)}",
        f"role -> system message: {{{arena.roles[0]!r}: ...}}",
    )
    for role in arena.system:
        if role not in arena.roles:
            raise ArenaError(f"system of {name} names {role!r}{did_you_mean(role, arena.roles)}")
    _check_weights(arena.reward_weights, name)
    for form in METHODS:
        method, _, _ = form.partition("(")
        given = getattr(arena, method)
        try:
            inspect.signature(given).bind(None)
        except TypeError:
            what = f"takes {inspect.signature(given)}" if callable(given) else f"is {shown(given)}"
            write = f"async def {form}" if method == "play" else f"def {form}"
            raise ArenaError(f"{method}() of {name} {what}; write {write}") from None
    _check_own_names(arena, name)


def _check_own_names(arena: Playable, name: str) -> None:
    """Refuse attributes of a user's arena that hide what every arena has, as ``self.step = 0``."""
    bases = [vars(base) for base in type(arena).__mro__ if base.__module__.startswith("legos.")]
    methods = [field for base in bases for field, own in base.items() if callable(own)]
    hidden = [field for field in methods if not callable(getattr(arena, field))]
    hidden += [field for field in ("cursor", "stores") if not hasattr(vars(arena)[field], "state")]
    if hidden:
        raise ArenaError(
            f"{hidden[0]} of {name} is {shown(getattr(arena, hidden[0]))}, and hides what every "
            "arena has under this name; give it another one"
        )


def _check_policies(policies: Iterable[str], what: str) -> None:
    """Refuse names that the files and the requests of an adapter cannot have.

    Raises:
        ArenaError: one cannot be an adapter's, or is that of a folder of the first policy.
    """
    for policy in policies:
        try:
            checked_name(policy)
        except AdapterError as error:
            raise ArenaError(f"{what}: {error}") from error
        folder = policy[0] == "v" and policy[1:].isdecimal()
        _check(not folder, f"{what} has {policy!r}, a folder of adapters", "another name")


def _check(right: bool, what: str, expected: str) -> None:
    """Raise ``ArenaError`` unless a value is right; ``what`` shows it."""
    if not right:
        raise ArenaError(f"{what}; expected {expected}")


def _check_numbers(arena: Playable, name: str) -> None:
    """Check the counts, times and rewards among the attributes."""
    for field, least, or_none in (
        ("tasks_per_step", 1, ""),
        ("group_size", 1, ""),
        ("retries", 0, ""),
        ("max_tokens", 1, ", or None"),
    ):
        value: object = getattr(arena, field)
        right = (isinstance(value, int) and value >= least) or (value is None and bool(or_none))
        expected = f"a whole number, at least {least}{or_none}"
        _check(right, f"{field} of {name} is {brief(value)}", expected)
    for field, or_none in (("report_after_s", ""), ("play_timeout_s", ", or None")):
        value = getattr(arena, field)
        right = number(value) > 0 or (value is None and bool(or_none))
        _check(right, f"{field} of {name} is {brief(value)}", f"seconds above 0{or_none}")
    if not abs(number(arena.forfeit_reward)) <= MAX_REWARD:
        given = brief(arena.forfeit_reward)
        raise ArenaError(f"forfeit_reward of {name} is {given}; {reward_range}")


def _check_weights(weights: Any, name: str) -> None:
    """Check that ``reward_weights`` is a mapping from names to numbers within bounds."""
    expected, what = "part -> weight, such as {'correct': 1.0, 'format': 0.1}", "reward_weights of"
    _check(isinstance(weights, Mapping), f"{what} {name} is {shown(weights)}", expected)
    for part, weight in cast("Mapping[Any, Any]", weights).items():
        right = isinstance(part, str) and bool(part) and abs(number(weight)) <= MAX_REWARD
        _check(right, f"{what} {name} gives {part!r} the weight {shown(weight)}", expected)


def check_names(given: object, what: str) -> None:
    """Check that roles or policies are a list of different names.

    Args:
        given: the value of the attribute.
        what: description of the attribute, for the message.

    Raises:
        ArenaError: they are not; the message says what to write.
    """
    if isinstance(given, str):
        raise ArenaError(f'{what} is the text {given!r}; write ("{given}",)')
    names = list(cast("Sequence[object]", given)) if isinstance(given, Sequence) else []
    texts = [name for name in names if isinstance(name, str) and name]
    right = bool(texts) and len(set(texts)) == len(names)
    ordered = isinstance(given, Sequence)
    expected = "one name or more, each once" if ordered else "a list or a tuple of names"
    _check(right, f"{what} is {given!r}", expected)


def checked_tasks(arena: Playable, rng: random.Random, *, held_out: bool = False) -> Iterator[Task]:
    """The arena's tasks, in order.

    Args:
        arena: the arena.
        rng: the source of randomness.
        held_out: give the held-out tasks, if the arena has some.

    Raises:
        ArenaError: ``tasks`` or ``held_out`` failed, or yields anything but tasks.
    """
    source = f"held_out() of arena {arena.name!r}"
    with user_code(source):
        given = arena.held_out(rng) if held_out else None
    if given is None:
        source = f"tasks() of arena {arena.name!r}"
    with user_code(source):
        given = arena.tasks(rng) if given is None else given
        for task in _iterable(given, source):
            check_task(task, source, arena.levels)
            yield task


def _iterable(given: Any, source: str) -> Iterable[Any]:
    """Check that what ``tasks`` returned can be iterated over."""
    if inspect.iscoroutine(given):
        given.close()
    if inspect.isasyncgen(given) or inspect.iscoroutine(given):
        raise ArenaError(f"{source} is async; write def {source.partition('(')[0]}(self, rng)")
    if type(given) in (str, dict, set, frozenset, Task) or not hasattr(given, "__iter__"):
        raise ArenaError(
            f"{source} returned {shown(given)}; write yield Task(id=..., data=...), or return a "
            "list of tasks"
        )
    if inspect.isgenerator(given) and inspect.getgeneratorstate(given) == inspect.GEN_CLOSED:
        raise ArenaError(f"{source} returned a generator again; return a list, or a new one")
    return given


def check_task(task: object, source: str, levels: Sequence[str] | None = None) -> None:
    """Check a task that something of the user yielded; its level too, unless they are None."""
    if not isinstance(task, Task):
        raise ArenaError(
            f"{source} yielded {shown(task)}; expected a Task, such as Task(id='sum/1', data=...)"
        )
    if not isinstance(task.id, str):
        raise ArenaError(f"{source} yielded a Task whose id is {shown(task.id)}; expected text")
    seed: Any = task.seed
    if not hasattr(seed, "__index__"):
        raise ArenaError(
            f"{source} yielded task {task.id!r} with seed={shown(seed)}; expected a whole number"
        )
    level: Any = task.level
    if not (level is None or isinstance(level, str)):
        raise ArenaError(
            f"{source} yielded task {task.id!r} with level={shown(level)}; expected text, or None"
        )
    if levels is not None and level not in (levels or (None,)):
        listed = ", ".join(levels) or f"it has none; write levels = ({level!r}, ...)"
        raise ArenaError(
            f"{source} yielded task {task.id!r} with level={shown(level)}; expected one of the "
            f"arena's levels: {listed}"
        )
    size: Any = task.group_size
    if size is not None and (not isinstance(size, int) or size < 1):
        raise ArenaError(
            f"{source} yielded task {task.id!r} with group_size={shown(size)}; expected a whole "
            "number, at least 1, or None"
        )


def checked_seats(
    seats: Any, roles: Sequence[str], policies: Sequence[str], source: str
) -> Mapping[str, Seat]:
    """Check the seats of a play.

    Args:
        seats: the returned value.
        roles: the arena's roles.
        policies: the adapters that are trained.
        source: describes the function that returned it, for the message.

    Raises:
        ArenaError: it is not a mapping from roles to seats of these roles, or a trainable seat has
            another role than the arena's, or an adapter that is not trained.
    """
    expected = "expected role -> Seat, as dict(super().seats(task)) is"
    if seats is None:
        raise ArenaError(f"{source} returned None; is a `return` missing? {expected}")
    if not isinstance(seats, Mapping):
        raise ArenaError(f"{source} returned {shown(seats)}; {expected}")
    for role, seat in cast("Mapping[str, object]", seats).items():
        if not isinstance(seat, Seat):
            raise ArenaError(f"{source} put {shown(seat)} in seat {role!r}; {expected}")
        if seat.role != role:
            raise ArenaError(
                f"{source} put the seat of {seat.role!r} in seat {role!r}; give it the role: "
                f"dataclasses.replace(seat, role={role!r})"
            )
        if seat.trainable and role not in roles:
            raise ArenaError(
                f"{source} put a seat to be trained in {role!r}, which is none of the arena's "
                f"roles {', '.join(map(repr, roles))}; add it to roles, or write trainable=False"
            )
        policy = seat.policy
        if policy is not None and policy not in policies:
            raise ArenaError(
                f"{source} put adapter {seat.adapter!r} in seat {role!r} to be trained; the "
                f"arena's policies are {', '.join(map(repr, policies))}, so write trainable=False, "
                "or name the adapter in policies"
            )
    return cast("Mapping[str, Seat]", seats)


def check_text(text: object, what: str) -> None:
    """Check that a prompt is text.

    Raises:
        ArenaError: it is not; the message shows the value.
    """
    if isinstance(text, str):
        return
    if isinstance(text, Reply):
        raise ArenaError(f"{what} is a Reply; pass its text: reply.answer")
    raise ArenaError(f"{what} is {shown(text)}; expected text")


def check_counts(what: str, **counts: Any) -> None:
    """Check that arguments of a call are whole numbers from 0; else raise ``ArenaError``."""
    for name, count in counts.items():
        right = isinstance(count, Integral) and int(count) >= 0
        _check(right, f"{name} of {what} is {shown(count)}", "a whole number, 0 or more")


def checked_question(prompt: object, role: str) -> Message | tuple[int, ...]:
    """A prompt as the message of a user, or as token ids.

    Raises:
        ArenaError: it is neither text nor a list of token ids; the message shows the value.
    """
    if type(prompt) is str:
        return Message("user", prompt)
    if is_token_ids(prompt):
        return tuple(map(int, prompt))
    if isinstance(prompt, Sequence) and not isinstance(prompt, str | bytes):
        raise ArenaError(
            f"the prompt for {role!r} is {shown(cast('object', prompt))}; expected text, or token "
            "ids: whole numbers from 0, at least one"
        )
    check_text(prompt, f"the prompt for {role!r}")
    return Message("user", str(prompt))


def is_token_ids(value: object) -> TypeGuard[Sequence[int]]:
    """Whether a value is a list of token ids: whole numbers from 0, at least one."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        return False
    items = cast("Sequence[object]", value)
    numbers = all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in items)
    return bool(items) and numbers


def checked_choices(choices: Any, role: str) -> tuple[str, ...]:
    """Check the legal answers to a question.

    Args:
        choices: the argument of ``ask``, or what a game's ``legal`` returned.
        role: the role that is asked.

    Raises:
        ArenaError: the list is empty, or no answer can equal one of the choices.
    """
    if isinstance(choices, str) or not hasattr(choices, "__iter__"):
        raise ArenaError(f"the choices for {role!r} are {shown(choices)}; expected a list of texts")
    if type(choices) in (set, frozenset):  # of another order in each process
        raise ArenaError(f"the choices for {role!r} are a set; give a list, such as sorted(...)")
    texts = tuple(choices)
    if complaint := _complaint(texts):
        raise ArenaError(f"the choices for {role!r} {complaint}")
    return tuple(map(str.__str__, texts))  # also of NumPy's texts and of enumerations


def _complaint(texts: tuple[Any, ...]) -> str | None:
    """The first problem of the choices, or None."""
    if not texts:
        return "are an empty list; offer one, or end the play"
    for text in texts:
        if not isinstance(text, str):
            return f"hold {shown(text)}; expected texts: [str(x) for x in ...]"
        if not text.strip():
            return f"hold {text!r}; expected texts with something in them"
        if text != text.strip():
            return f"hold {text!r}, and blanks around an answer are cut off; write {text.strip()!r}"
    if len(set(texts)) < len(texts):
        twice = next(text for text in texts if texts.count(text) > 1)
        return f"hold {twice!r} twice; expected each once"
    return None


def checked_rewards(returned: Any, roles: Sequence[str], source: str) -> dict[str, float]:
    """A play's rewards as Python floats.

    Args:
        returned: what ``play`` or ``payoff`` returned.
        roles: the roles that must have a reward.
        source: the function that returned it, for the message.

    Raises:
        RewardError: a reward is None, or a number that is not finite or beyond ``MAX_REWARD``.
        ArenaError: it is not a mapping from each role to a number.
    """
    given = cast("Mapping[str, Any]", returned if isinstance(returned, Mapping) else {})
    if len(given) != len(roles):
        raise ArenaError(f"{source} returned {_unlike(returned, roles)}")
    rewards: dict[str, float] = {}
    for role in roles:
        if role not in given:
            raise ArenaError(f"{source} returned {_unlike(returned, roles)}")
        parts = isinstance(given[role], Mapping)
        hint = ", or reward_weights in the arena: part -> weight" if parts else ""
        rewards[role] = checked_reward(
            given[role], f"{source} gives {role!r} the reward", hint=hint
        )
    return rewards


def _unlike(returned: Any, roles: Sequence[str]) -> str:
    """Describe how a value differs from one reward for each role."""
    expected = f"expected a reward for each role: return {dict.fromkeys(roles, 0.0)}"
    if returned is None:
        return f"None; is a `return` missing? {expected}"
    if not isinstance(returned, Mapping):
        return f"{shown(returned)}; {expected}"
    names = ", ".join(map(repr, cast("Mapping[str, Any]", returned))) or "no role"
    return f"rewards for {names}; {expected}"

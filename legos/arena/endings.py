"""Exceptions that a play raises to end early: a draw, a void play, a forfeit."""


class Draw(Exception):  # noqa: N818 - an ending of a play, not an error
    """Raise it to end a play with reward 0 for every role."""


class Void(Exception):  # noqa: N818 - an ending of a play, not an error
    """Raise it to end a play without a valid result; it is counted but never trained on."""


class Forfeit(Exception):  # noqa: N818 - an ending of a play, not an error
    """Raise it to end a play that ``role`` loses by breaking the rules."""

    def __init__(self, role: str, reason: str = "") -> None:
        super().__init__(f"{role} forfeits: {reason}" if reason else f"{role} forfeits")
        self.role = role
        self.reason = reason

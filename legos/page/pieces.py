"""The text of each token of a play, where the tokenizer of the run's model is on this machine."""

from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from legos.chat.incremental import TextStream
from legos.chat.load import load_tokenizer
from legos.chat.tokenizer import ChatTokenizer
from legos.errors import ModelError
from legos.run.episodes import StoredEpisode, turns_of
from legos.wiring.model import model_place


class Pieces:
    """Splits answers into tokens; each tokenizer is loaded once, when it is first needed."""

    def __init__(self) -> None:
        self._loaded: dict[str, ChatTokenizer] = {}
        self._lock = Lock()  # two threads would import the library at the same time

    def of_play(self, model: str, episode: StoredEpisode) -> list[list[str]]:
        """The text of each token of each turn; a token that ends no character has an empty text.

        Args:
            model: a folder, a name on the hub, or the built-in model.
            episode: the play; its turns are in the order of ``turns_of``.

        Raises:
            ModelError: the model's tokenizer is not on this machine.
        """
        with self._lock:
            if model not in self._loaded:
                self._loaded[model] = load_tokenizer(_folder_of(model))
            tokenizer = self._loaded[model]
        return [_pieces(tokenizer, turn.token_ids) for _, turn in turns_of(episode)]


def _folder_of(model: str) -> Path:
    """The folder with a model's tokenizer; nothing is downloaded.

    Raises:
        ModelError: it is not on this machine.
    """
    place = model_place(model)
    if Path(place).is_dir():
        return Path(place)
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(place, "tokenizer.json")
    except ValueError:  # it is no name on the hub
        found = None
    if not isinstance(found, str):
        raise ModelError(
            f"the tokenizer of {model} is not on this machine, so tokens are shown as numbers; "
            "copy the model there, or start `legos view` where it is"
        )
    return Path(found).parent


def _pieces(tokenizer: ChatTokenizer, token_ids: Sequence[int]) -> list[str]:
    stream = TextStream(lambda ids: tokenizer.decode(ids, controls=True))
    pieces = [stream.push([token]) for token in token_ids]
    if pieces:
        pieces[-1] += stream.finish(tokenizer.decode(token_ids, controls=True))
    return pieces

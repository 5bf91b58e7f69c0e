"""Text to token ids and back, chats included."""

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Any

from legos.chat.channels import MARKS, TAGS, with_tags, without_channels
from legos.chat.continuation import ANSWERS, after_answer, extended, probes
from legos.chat.fields import Neutraliser, message_fields
from legos.chat.parts import CLOSE, OPEN
from legos.chat.template import ChatTemplate
from legos.chat.tools import plain_messages
from legos.errors import ModelError
from legos.records.message import Continuation, Message, Thinking

logger = logging.getLogger(__name__)
_TAIL = 8  # number of last prompt tokens that are searched for an opening <think>
_REMEMBERED_PROMPTS = 2048
_REMEMBERED_CHARACTERS = 4096  # a longer chat is rarely asked twice, and its ids take memory


class ChatTokenizer:
    """One model's tokenizer and chat template, safe to use from several threads.

    A tokenizer without a chat template gets a plain form: one line ``role: content`` for every
    message, then ``assistant:``, after whatever token its texts begin with.

    Attributes:
        vocab_size: number of tokens, added ones included.
        end_ids: the token ids that end a completion, in ascending order.
        knows_tools: whether the chat template writes tools.
        knows_thinking: whether the chat template knows thinking tags.
        knows_effort: whether it reads the variable ``reasoning_effort``.
        template: the text of the chat template; empty: there is none.
        thinking: what every chat asks for that names no other.
    """

    def __init__(
        self, tokenizer: Any, *, end_ids: Sequence[int], thinking: Thinking = "default"
    ) -> None:
        self._tokenizer = tokenizer
        # The library's tokenizers in Rust refuse only to be changed while another thread uses them,
        # and their first call puts truncation and padding off.
        tokenizer.encode("")
        self._rust: Any = tokenizer.backend_tokenizer
        self._controls = _control_tokens(tokenizer)
        self._template = ChatTemplate(tokenizer, Neutraliser(self._controls), thinking=thinking)
        self._special_ids = frozenset(tokenizer.all_special_ids) | {
            token for token, added in tokenizer.added_tokens_decoder.items() if added.special
        }
        self._pieces = _pieces(tokenizer, self._controls)
        self._tagged = not TAGS.keys().isdisjoint(tokenizer.get_vocab())
        self._channels = b"<|channel|>" in self._pieces.values()
        self._framed = self._channels or "<|START_RESPONSE|>" in self._controls
        self._remember = lru_cache(maxsize=_REMEMBERED_PROMPTS)(self._render)
        self._remember_after = lru_cache(maxsize=_REMEMBERED_PROMPTS)(self._after)
        self.vocab_size: int = len(tokenizer)
        self.end_ids: tuple[int, ...] = tuple(sorted(set(end_ids)))
        self.knows_tools: bool = self._template.knows_tools
        self.knows_thinking: bool = self._template.knows_thinking
        self.knows_effort: bool = self._template.knows_effort
        self.template: str = self._template.source
        self.thinking: Thinking = thinking

    @property
    def thinks(self) -> bool:
        """Whether chats ask for thinking by default, and can ask for none."""
        return self._template.thinks

    def with_thinking(self, thinking: Thinking) -> "ChatTokenizer":
        """The same tokenizer, whose chats ask the model to think in a certain way.

        Args:
            thinking: whether it thinks before it answers, or how long.

        Raises:
            ModelError: the chat template has no variable for it.
        """
        if thinking == self.thinking:
            return self
        return ChatTokenizer(self._tokenizer, end_ids=self.end_ids, thinking=thinking)

    def encode(self, text: str, *, specials: bool = False) -> tuple[int, ...]:
        """Return the ids of a text; none are added around it unless `specials` is True."""
        return self.encode_each([text], specials=specials)[0]

    def encode_each(self, texts: Sequence[str], *, specials: bool = False) -> list[tuple[int, ...]]:
        """``encode`` for many texts.

        The library leaves other threads the interpreter only in this call, which is the fastest.
        """
        found = self._rust.encode_batch_fast(list(texts), add_special_tokens=specials)
        return [tuple(one.ids) for one in found]

    def decode(self, ids: Sequence[int], *, controls: bool = False) -> str:
        """Return the text of token ids.

        Special tokens give no text unless `controls` is True, except those around thinking, which
        become ``<think>`` and ``</think>`` in every family. The text of more tokens begins with
        that of fewer, up to a character whose bytes are not all there yet.
        """
        if controls:
            return self._plain(ids, controls=True)
        text = self._spelled(ids)
        if self._tagged:
            text = with_tags(text)
        return without_channels(text) if self._channels else text

    def _spelled(self, ids: Sequence[int]) -> str:
        """The text of token ids, the names of special tokens around thinking included."""
        if self._pieces.keys().isdisjoint(ids):
            return self._plain(ids, controls=False)
        text = ""
        kept = [token for token in ids if token in self._pieces or token not in self._special_ids]
        for number, (own, run) in enumerate(groupby(kept, key=self._pieces.__contains__)):
            if own:
                pieces = b"".join(self._pieces[token] for token in run)
                if number == 0 and self._drops_space:
                    pieces = pieces.removeprefix(b" ")
                text += pieces.decode("utf-8", errors="replace")
            elif number == 0:
                text += self._plain(list(run), controls=False)
            else:  # some decoders drop a space at the beginning
                guard, guard_text = self._guard
                text += self._plain([guard, *run], controls=False)[len(guard_text) :]
        return text

    def token_text(self, token: int) -> str:
        """The text of a token within a text, also that of a special token."""
        guard, text = self._guard  # some decoders drop a space at the beginning
        return self._plain([guard, token], controls=True)[len(text) :]

    def _plain(self, ids: Sequence[int], *, controls: bool) -> str:
        return self._tokenizer.decode(
            list(ids), skip_special_tokens=not controls, clean_up_tokenization_spaces=False
        )

    @cached_property
    def _guard(self) -> tuple[int, str]:
        """An ordinary token and its text."""
        token = self.encode("a")[-1]
        return token, self._plain([token], controls=False)

    @cached_property
    def _drops_space(self) -> bool:
        """Whether the decoder drops a space at the beginning of a text."""
        spaces = [token for token, piece in self._pieces.items() if piece == b" "]
        return bool(spaces) and self._plain(spaces, controls=False) == ""

    def is_control(self, text: str) -> bool:
        """Whether a text is the name of a special token, which ``decode`` leaves out."""
        return text in self._controls

    def opens_thinking(self, prompt_ids: Sequence[int]) -> bool:
        """Whether a prompt ends with an opening <think>, so that the answer begins as thinking."""
        if not self.knows_thinking:
            return False
        return self.decode(prompt_ids[-_TAIL:]).rstrip().endswith(OPEN)

    def definition(self) -> str:
        """Return the tokenizer's vocabulary, merges and rules as the text of a tokenizer.json."""
        return self._rust.to_str()

    @cached_property
    def continues(self) -> bool:
        """Whether the chat template can render what is new alone, after the tokens of an answer."""
        return self._continues_with(Message("user", "new"))

    @cached_property
    def continues_tools(self) -> bool:
        """Whether the same holds for the result of a tool call."""
        return self._continues_with(Message("tool", "new", tool_call_id="call00001"))

    def _continues_with(self, *new: Message) -> bool:
        try:
            one, other = map(self._render, probes(new))
        except ModelError:
            return False
        after = after_answer(one, other)
        before = self.decode(one[: len(one) - len(after)], controls=True)
        return before.endswith(ANSWERS[0]) and new[0].content in self.decode(after)

    def check(self) -> None:
        """Say in the log what becomes of chats with this tokenizer."""
        if not self._template.exists:
            logger.warning(
                "the tokenizer has no chat template, as of a base model: prompts are lines `role: "
                "content`. Take the model that was tuned to chat (often -Instruct), or let it "
                "imitate answers first (legos imitate)"
            )
        if not self.end_ids:
            logger.warning(
                "neither the tokenizer nor generation_config.json names a token that ends an "
                "answer (eos_token, eos_token_id): every answer runs to max_tokens"
            )
        if self._template.merges_system:
            logger.warning(
                "the model's chat template refuses or omits system messages, so their texts, such "
                "as rules and descriptions of tools, begin the questions after them"
            )
        if self._template.merges_users:
            logger.warning(
                "the model's chat template refuses two messages of a user in a row, so what a seat "
                "is told (t.tell) and the question after it are one message"
            )
        if not self.continues:
            logger.warning(
                "the model's chat template cannot go on after the tokens of an answer, so every "
                "prompt of a conversation is rendered again; where that does not extend the tokens "
                "so far, a new sample starts (arena/token_breaks)"
            )

    def render(
        self, prompt: Sequence[Message] | Continuation, tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[int, ...]:
        """Return the prompt of a chat, up to where the assistant's next message begins.

        No text in messages or tools can end a message: a control token spelled out in it is broken
        by a space, except thinking tags in what an assistant says. A conversation that goes on
        keeps its tokens, where the chat template allows it. Where the template has no system
        messages, their texts begin the questions after them; where it refuses neighbouring messages
        of users, they are one.

        Args:
            prompt: the messages.
            tools: tools that may be called; the tokens of a conversation that goes on have them.

        Raises:
            ModelError: the model's chat template refuses these messages, or there are none.
        """
        if isinstance(prompt, Continuation):
            results = any(message.role == "tool" for message in prompt.new)
            if self.continues and (not results or self.continues_tools):
                after = self._after if _is_long(prompt.new) else self._remember_after
                return extended(prompt.last, after(prompt.new), self._replaced_end)
            prompt = prompt.messages
        chat = tuple(prompt)
        if tools:
            return self.render_chat([message_fields(message) for message in chat], tools)
        return self._render(chat) if _is_long(chat) else self._remember(chat)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        options: Mapping[str, Any] | None = None,
    ) -> tuple[int, ...]:
        """``render`` for messages as OpenAI's interface has them, tool calls and answers included.

        Args:
            messages: each with "role" and a text as "content"; assistants' may have "tool_calls",
                their arguments as JSON objects.
            tools: what may be called; in the system message where the template takes no tools.
            options: further variables of the chat template, such as ``enable_thinking``.

        Raises:
            ModelError: the model's chat template refuses these messages, or there are none.
        """
        ids = self.encode(
            self._template.text(messages, tools, options), specials=not self._template.exists
        )
        if not self._template.exists:
            return ids[:-1] if ids[-1] == self._tokenizer.eos_token_id else ids
        first = self._tokenizer.bos_token_id
        return ids[1:] if first is not None and ids[:2] == (first, first) else ids

    def answer_ids(
        self,
        messages: Sequence[Mapping[str, Any]],
        answer: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> tuple[int, ...]:
        """The tokens with which a model says an assistant's message, the end of its turn included.

        A text is said as it stands; tool calls, thinking, and a text between marks of its own
        (gpt-oss, Command) as the chat template writes them. Where the prompt ends with an opening
        <think>, the answer closes it first.

        Args:
            messages: the prompt, as ``render_chat`` takes it.
            answer: the assistant's message.
            tools: what may be called.

        Raises:
            ModelError: the chat template does not write the message after this prompt.
        """
        thinking = answer.get("reasoning_content")
        if not (thinking or self._framed or (answer.get("tool_calls") and self.knows_tools)):
            text = plain_messages([answer], ())[0]["content"]
            if self.knows_thinking and self._template.text(messages, tools).rstrip().endswith(OPEN):
                thinks = CLOSE in text  # and the prompt has the tag before it
                text = text.lstrip().removeprefix(OPEN) if thinks else f"\n{CLOSE}\n\n{text}"
            return (*self.encode(text), *self._turn_end)
        before = self._template.text(messages, tools)
        whole = self._template.text([*messages, answer], tools, asks=False)
        text = whole.removeprefix(before)
        said = self.encode(text)
        length = next((n for n, token in enumerate(said, 1) if token in self.end_ids), 0)
        if not whole.startswith(before) or not length or (thinking or "").strip() not in text:
            raise ModelError(
                "the model's chat template does not write an answer with tool_calls or "
                "reasoning_content after this prompt; give the answer as the model says it, in "
                "content"
            )
        return said[:length]

    @cached_property
    def _turn_end(self) -> tuple[int, ...]:
        """Of the tokens that end a completion, the one that ends a turn in the chat template."""
        after = self._after((Message("user", "new"),)) if self.continues else ()
        return after[:1] if after and after[0] in self.end_ids else self.end_ids[:1]

    @cached_property
    def _replaced_end(self) -> tuple[int, ...]:
        """The token that ends the last answer of a chat, where those before it end as questions do.

        gpt-oss ends its answer with ``<|return|>``; where the chat goes on, its template writes
        ``<|end|>`` there, as after every other message.
        """
        user = Message("user", "?")
        asked, *answered = (
            self.encode(self._template.text([*map(message_fields, chat)], asks=False))
            for chat in ((user,), *probes(()))
        )
        ends = after_answer(*answered)[:1]
        as_questions = asked[-1:] == self._after((user,))[:1]
        return ends if as_questions and ends and ends[0] in self.end_ids else ()

    def _render(self, chat: tuple[Message, ...]) -> tuple[int, ...]:
        return self.render_chat([message_fields(message) for message in chat])

    def _after(self, new: tuple[Message, ...]) -> tuple[int, ...]:
        one, other = map(self._render, probes(new))
        return after_answer(one, other)


def _is_long(chat: Sequence[Message]) -> bool:
    return sum(len(message.content) for message in chat) > _REMEMBERED_CHARACTERS


def _control_tokens(tokenizer: Any) -> tuple[str, ...]:
    added = tokenizer.added_tokens_decoder.values()
    names = {str(token) for token in added if token.special} | set(tokenizer.all_special_tokens)
    return tuple(sorted(name for name in names if len(name) > 1))


def _pieces(tokenizer: Any, controls: Sequence[str]) -> dict[int, bytes]:
    """Tokens whose bytes are known: single bytes, and special tokens around thinking.

    The library turns a whole run of single bytes into signs of replacement where one is missing.
    """
    vocabulary: Mapping[str, int] = tokenizer.get_vocab()
    names = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}
    names |= {mark: mark.encode() for mark in MARKS if mark in controls}
    return {vocabulary[name]: piece for name, piece in names.items() if name in vocabulary}

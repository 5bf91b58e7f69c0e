"""Read a whole reply that may think or call tools; the server's streams use the same parser."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from legos.chat.channels import with_tags
from legos.chat.parts import CLOSE, OPEN, ReplyParser, join_parts
from legos.chat.tokenizer import ChatTokenizer
from legos.chat.tools import PLAIN_TOOLS, ToolFormat, with_ids
from legos.records.message import Sampling, ToolCall


def begins_thinking(
    tokenizer: ChatTokenizer, prompt_ids: Sequence[int], sampling: Sampling
) -> bool:
    """Whether a reply begins as thinking: its prompt has opened it, and there is room to think.

    Without a limit of its own, a reply is as long as a choice.
    """
    free = not (sampling.json_schema or sampling.restrict or sampling.max_tokens is None)
    return free and tokenizer.opens_thinking(prompt_ids)


def reply_decoder(
    tokenizer: ChatTokenizer, form: ToolFormat | None
) -> Callable[[Sequence[int]], str]:
    """Decodes a reply so that the marks around tool calls are in its text.

    Marks that are control tokens appear only in text decoded with control tokens, which may be the
    marks around thinking too.
    """
    if form is None or not tokenizer.is_control(form.start):
        return tokenizer.decode
    ends = tokenizer.end_ids
    return lambda ids: with_tags(tokenizer.decode([t for t in ids if t not in ends], controls=True))


def read_reply(
    text: str,
    tools: Sequence[Mapping[str, Any]],
    form: ToolFormat = PLAIN_TOOLS,
    *,
    thinking: bool = False,
    cut: bool = False,
    seed: int = 0,
) -> tuple[str, tuple[ToolCall, ...]] | None:
    """The text of a reply without its tool calls, and the calls; None if it has no call.

    Args:
        text: the reply, as ``reply_decoder`` decodes it.
        tools: tools that may be called, in the format of OpenAI's API.
        form: format in which the model writes tool calls.
        thinking: whether the prompt ended inside thinking.
        cut: whether the model had not ended the reply.
        seed: the ids of the calls derive from it.
    """
    parser = ReplyParser(thinking=thinking, form=form, tools=tools)
    content, thought, calls = join_parts([*parser.push(text), *parser.finish(cut=cut)])
    if not calls:
        return None
    whole = f"{OPEN}{thought}{CLOSE}{content}" if thought else content
    return whole, with_ids(calls, seed)

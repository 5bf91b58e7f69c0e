"""Tokenizers that spell rare characters in bytes: stop texts, streams and marks of thinking."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from legos.chat.calls import read_reply, reply_decoder
from legos.chat.incremental import TextStream
from legos.chat.load import load_tokenizer
from legos.chat.parts import ReplyParser, join_parts
from legos.chat.reply import split_thinking
from legos.chat.stops import cut_at_stop, stop_test
from legos.chat.tokenizer import ChatTokenizer
from legos.chat.tools import ToolFormat, also_known
from legos.errors import ModelError
from legos.records.message import Completion, Continuation, Message

SPECIAL = ("<s>", "</s>", "<pad>", "<think>", "</think>")
HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>")
WORDS = ("▁", "a", "b", "▁a", "▁b", "ab", "END", "▁END", "!", "[4]")
CALLED = ("▁to=functions.take", "▁json")
NAMES = ("analysis", "final", "assistant", "commentary", *CALLED)


def sentencepiece(*special: str) -> PreTrainedTokenizerFast:
    """A tokenizer as Llama 2 and gemma have it."""
    pieces = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS, *NAMES]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    model = models.BPE(vocabulary, [], byte_fallback=True, fuse_unk=True, unk_token="<pad>")
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in special])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=special[1])


LIBRARY = sentencepiece(*SPECIAL)
TOKENIZER = ChatTokenizer(LIBRARY, end_ids=[1])
SIZE = TOKENIZER.vocab_size
SPACE = len(SPECIAL) + ord(" ")
characters = st.sampled_from("日本é🙂\n").map(lambda c: tuple(b + len(SPECIAL) for b in c.encode()))
tokens = st.lists(
    st.one_of(
        st.integers(0, SIZE - 1).map(lambda token: (token,)),
        st.integers(SIZE - len(WORDS) - len(NAMES), SIZE - 1).map(lambda token: (token,)),
        characters,
    ),
    max_size=20,
).map(lambda parts: tuple(token for part in parts for token in part))
stops = st.lists(st.sampled_from(["END", "日", "本日", "🙂", "é\n", " END", "a b"]), min_size=1)


def spelled(ids: tuple[int, ...]) -> str:
    """The text by hand, byte by byte; special tokens but those around thinking give none."""
    pieces: Any = LIBRARY.convert_ids_to_tokens([token for token in ids if token > 2])
    raw = [
        bytes.fromhex(piece[3:5]) if piece.startswith("<0x") else piece.replace("▁", " ").encode()
        for piece in pieces
    ]
    return b"".join(raw).decode(errors="replace").removeprefix(" ")


@settings(max_examples=100)
@example((SPACE,))
@example((0, SPACE, SPACE))
@example((SPACE, SIZE - 1))
@given(tokens)
def test_bytes_that_are_whole_characters_are_read(ids: tuple[int, ...]) -> None:
    """The text is the library's, except that a broken byte spoils no character beside it."""
    assert TOKENIZER.decode(ids) == spelled(ids)
    expected = LIBRARY.decode(list(ids), skip_special_tokens=True)
    marked = any(token in (3, 4) for token in ids)
    if "\ufffd" not in expected and not marked:
        assert TOKENIZER.decode(ids) == expected


@pytest.mark.slow
@settings(max_examples=100)
@given(tokens, stops)
def test_a_stop_text_ends_the_completion_at_once(ids: tuple[int, ...], stop: list[str]) -> None:
    stopped = stop_test(TOKENIZER.decode, stop)
    for length in range(1, len(ids) + 1):
        text = TOKENIZER.decode(ids[:length])
        expected = any(word in text for word in stop)
        assert stopped(ids[:length]) == expected or (expected and stopped(ids[: length - 1]))
        if expected:
            break


@pytest.mark.slow
@settings(max_examples=100)
@given(tokens, st.lists(st.integers(1, 3), min_size=60, max_size=60), st.booleans())
def test_a_stream_is_the_final_text(ids: tuple[int, ...], sizes: list[int], cut: bool) -> None:
    stop = ("END", "日") if cut else ()
    stream, said, start = TextStream(TOKENIZER.decode, stop), "", 0
    for size in sizes:
        said += stream.push(ids[start : start + size])
        start += size
    text = cut_at_stop(TOKENIZER.decode(ids), stop)
    assert text.startswith(said)
    assert said + stream.finish(text) == text


def test_thinking_marks_that_are_special_tokens_stay() -> None:
    ids = (3, *TOKENIZER.encode("a b"), 4, *TOKENIZER.encode("[4]"), 1)
    assert split_thinking(TOKENIZER.decode(ids)) == ("a b", "[4]")


ANALYSIS = (
    "<|channel|>",
    "analysis",
    "<|message|>",
    "a",
    "▁b",
    "<|end|>",
    "<|start|>",
    "assistant",
)
FINAL = ("<|channel|>", "final", "<|message|>", "[4]", "<|return|>")
OPENED = ("a", "▁b", "<|end|>", "<|start|>", "assistant")  # by a prompt that ends in a header


@pytest.mark.parametrize(
    ("said", "text", "thinking"),
    [
        ((*ANALYSIS, *FINAL), "<think>a b</think>[4]", "a b"),
        (FINAL, "[4]", ""),
        (("<|start|>", "assistant", *FINAL), "[4]", ""),
        ((*OPENED, *FINAL), "a b</think>[4]", "a b"),
    ],
)
def test_channels_become_thinking(said: Sequence[str], text: str, thinking: str) -> None:
    library = sentencepiece("<s>", "</s>", "<pad>", *HARMONY)
    tokenizer = ChatTokenizer(library, end_ids=[1])
    ids = tuple(library.get_vocab()[part] for part in said)
    assert tokenizer.decode(ids) == text
    assert split_thinking(text) == (thinking, text.rpartition(">")[2])
    for length in range(len(ids)):
        assert tokenizer.decode(ids).startswith(tokenizer.decode(ids[:length]))
    stream = TextStream(tokenizer.decode)
    assert "".join(stream.push((token,)) for token in ids) == tokenizer.decode(ids)


TO_FIRST = (CALLED[0], "<|channel|>", "commentary", CALLED[1], "<|message|>")


@pytest.mark.parametrize(
    ("header", "before"),
    [
        ((*ANALYSIS, "<|channel|>", "commentary", *CALLED, "<|message|>"), "<think>a b</think>"),
        ((*ANALYSIS, *TO_FIRST), "<think>a b</think>"),
        (TO_FIRST, ""),  # the prompt ends with "<|start|>assistant"
    ],
)
def test_a_channel_to_a_function_is_a_call(header: Sequence[str], before: str) -> None:
    library = sentencepiece("<s>", "</s>", "<pad>", *HARMONY)
    tokenizer = ChatTokenizer(library, end_ids=[1])
    arguments = tokenizer.encode('{"a": 4}')
    vocabulary = library.get_vocab()
    ids = (*(vocabulary[part] for part in header), *arguments)
    stream = TextStream(tokenizer.decode)
    text = "".join(stream.push((token,)) for token in ids)
    assert text == tokenizer.decode(ids)
    form = also_known("<|start|>assistant to=functions.x<|channel|>commentary json<|message|>")
    assert form is not None
    content, (call,) = read_reply(text, [], form) or ("", ())
    assert content == before
    assert (call.name, json.loads(call.arguments)) == ("take", {"a": 4})


FAMILIES = {
    "mistral": ("[THINK]", "[/THINK]", "[TOOL_CALLS]"),
    "gemma 4": ("<|channel>", "<channel|>", "<|tool_call>"),
    "command": ("<|START_THINKING|>", "<|END_THINKING|>", "<|START_ACTION|>"),
}


@pytest.mark.parametrize("marks", FAMILIES.values(), ids=FAMILIES)
def test_the_marks_of_every_family_become_thinking(marks: tuple[str, str, str]) -> None:
    library = sentencepiece("<s>", "</s>", "<pad>", *marks, "<|START_TEXT|>")
    library.chat_template = f"{marks[0]}{marks[1]}{marks[2]}"
    tokenizer = ChatTokenizer(library, end_ids=[1])
    opened = "thought\n" if "channel" in marks[0] else ""
    thought = tokenizer.encode(f"{marks[0]}{opened}a b{marks[1]}")
    assert not tokenizer.opens_thinking(thought)
    assert tokenizer.opens_thinking(tokenizer.encode(f"a{marks[0]}"))
    said = tokenizer.encode("<|START_TEXT|>[4]")
    called = tokenizer.encode(f'{marks[2]}{{"name": "take", "arguments": {{}}}}')
    form = ToolFormat(start=marks[2], end="", parse=lambda text, _: json.loads(text))
    for ids, num_calls in ((thought + said, 0), (thought + called, 1)):
        stream = TextStream(tokenizer.decode)
        text = tokenizer.decode(ids)
        assert "".join(stream.push((token,)) for token in ids) == text
        assert num_calls or split_thinking(text) == ("a b", "[4]")
        parser = ReplyParser(form=form)
        text = reply_decoder(tokenizer, form)((*ids, 1))
        answer, thinking, calls = join_parts([*parser.push(text), *parser.finish()])
        assert (answer, thinking, len(calls)) == ("" if num_calls else "[4]", "a b", num_calls)


CHANNELS = (  # as gpt-oss's
    "{{- tools or '' }}"
    "{%- for message in messages %}{%- if message.role == 'assistant' %}{{- '<|start|>assistant' }}"
    "{%- if message.thinking %}{{- '<|channel|>analysis<|message|>' + message.thinking + '<|end|>'"
    "+ '<|start|>assistant' }}{%- endif %}{{- '<|channel|>final<|message|>' + message.content }}"
    "{{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}{%- else %}"
    "{{- '<|start|>user<|message|>' + message.content + '<|end|>' }}"
    "{%- endif %}{%- endfor %}{{- '<|start|>assistant' if add_generation_prompt }}"
)


@pytest.mark.parametrize("thinking", ["", "a b"])
def test_an_answer_to_imitate_is_in_its_channel(thinking: str) -> None:
    library = sentencepiece("<s>", "</s>", "<pad>", *HARMONY)
    library.chat_template = CHANNELS
    tokenizer = ChatTokenizer(library, end_ids=[1, 7])
    answer = {"role": "assistant", "content": "[4]", "reasoning_content": thinking or None}
    ids = tokenizer.answer_ids([{"role": "user", "content": "a"}], answer)
    assert ids[-1] == 7  # <|return|>
    assert split_thinking(tokenizer.decode(ids)) == (thinking, "[4]")


@pytest.mark.parametrize("end", ["<|return|>", "<|end|>", "[4]"])
def test_a_chat_goes_on_after_one_end_of_an_answer(end: str) -> None:
    library = sentencepiece("<s>", "</s>", "<pad>", *HARMONY)
    library.chat_template = CHANNELS
    tokenizer = ChatTokenizer(library, end_ids=[1, 7])
    said = tuple(library.get_vocab()[part] for part in (*FINAL[:-1], end))
    asked, new = Message("user", "a"), Message("user", "b")
    last = Completion(
        prompt_ids=tokenizer.render([asked]),
        token_ids=said,
        logprobs=(-1.0,) * len(said),
        versions=(1,) * len(said),
        finish_reason="stop",
        text="[4]",
    )
    chat = (asked, Message("assistant", "[4]"), new)
    ids = tokenizer.render(Continuation(last=last, messages=chat, num_new=1))
    so_far = last.prompt_ids + said
    assert ids[: len(so_far)] == so_far
    ends = ["<|end|>"] * (end == "[4]")
    after = library.convert_ids_to_tokens([*ids[len(so_far) :]])
    assert after[: len(ends) + 1] == [*ends, "<|start|>"]
    assert after.count("<|end|>") == len(ends) + 1


def test_thinking_before_a_call_stays_in_its_channel() -> None:
    library = sentencepiece("<s>", "</s>", "<pad>", *HARMONY)
    library.chat_template = CHANNELS
    tokenizer = ChatTokenizer(library, end_ids=[1, 7])
    for fields in ({"content": "<think>a</think>b"}, {"content": "b", "reasoning_content": "a"}):
        called = {"role": "assistant", "tool_calls": [{"function": {"name": "take"}}], **fields}
        prompt = tokenizer.decode(tokenizer.render_chat([called]))
        assert split_thinking(prompt) == ("a\n\nb", "")


LISTS = {
    "granite": '<|tool_call|>[{"name": "take", "arguments": {"a": 4}}]',
    "granite, one": '<|tool_call|> {"name": "take", "arguments": {"a": 4}}<|tool_call|>',
    "command": '<|START_ACTION|>[\n  {"tool_call_id": "0", "tool_name": "take", "parameters": '
    '{"a": 4}}\n]<|END_ACTION|>',
}


@pytest.mark.parametrize("said", LISTS.values(), ids=LISTS)
def test_lists_of_calls_after_a_mark_are_read(said: str) -> None:
    form = also_known(f"Write {said.partition('|>')[0]}|> before calls.")
    assert form is not None
    content, (call,) = read_reply(f"So. {said}", [], form) or ("", ())
    assert (content, call.name, json.loads(call.arguments)) == ("So.", "take", {"a": 4})


def test_a_prompt_without_a_template_does_not_end_with_the_end(tmp_path: Path) -> None:
    from tokenizers.processors import TemplateProcessing

    library = sentencepiece(*SPECIAL)
    library.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    library.save_pretrained(tmp_path)
    ids = load_tokenizer(tmp_path).render([Message("user", "a")])
    assert ids[0] == 0
    assert 1 not in ids


@pytest.mark.parametrize("wrapped", [False, True])
def test_every_end_that_config_json_names_ends_a_completion(tmp_path: Path, wrapped: bool) -> None:
    LIBRARY.save_pretrained(tmp_path)
    config = {"eos_token_id": [1, 2, 7]}
    (tmp_path / "config.json").write_text(
        json.dumps({"text_config": config} if wrapped else config)
    )
    assert load_tokenizer(tmp_path).end_ids == (1, 2, 7)


def test_a_config_that_the_library_rejects_does_not_hide_the_tokenizer(tmp_path: Path) -> None:
    LIBRARY.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_size": "x"}')
    assert load_tokenizer(tmp_path).vocab_size == SIZE
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="cannot read the tokenizer in"):
        load_tokenizer(tmp_path)

"""Tools in chats of templates that know none."""

from legos.chat.tools import plain_messages


def test_tools_and_calls_are_described_in_their_own_letters() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "查询天气"}}]
    call = {"function": {"name": "f", "arguments": {"city": "Köln"}}}
    chat = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    system, said = plain_messages(chat, tools)
    assert '"description": "查询天气"' in system["content"]
    assert said["content"] == '<tool_call>{"name": "f", "arguments": {"city": "Köln"}}</tool_call>'

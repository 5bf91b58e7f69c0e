"""A conversation in this process, for agents of verifiers that have no program of their own."""

import json
from contextlib import AsyncExitStack
from importlib import import_module
from typing import Any

import httpx

__all__ = ["Chat", "InProcess"]

vf: Any = import_module("verifiers.v1")
mcp: Any = import_module("verifiers.v1.harnesses.utils.mcp")
null: Any = import_module("verifiers.v1.harnesses.null")
wire: Any = import_module("verifiers.v1.dialects.chat")


class InProcess:
    """Replaces the program of verifiers' chat, which is a process for each turn, by ``Chat``."""

    config: Any

    async def setup(self, agents: Any) -> None:
        """Prepare the agents of an episode."""
        parent: Any = super()
        await parent.setup(agents)
        for role in self.config.agent_harnesses():
            agent: Any = getattr(agents, role)
            if type(agent.harness) is null.NullHarness:
                agent.harness = Chat(agent.harness.config)


class Chat(null.NullHarness):
    """A conversation in this process, with the tools of the task set."""

    SUPPORTS_TOOL_INTERCEPTION = False

    async def setup(self, runtime: Any) -> None:
        """Nothing to install."""

    async def launch(self, *session: Any) -> Any:
        """Ask the model until it calls no tool; the arguments are those of ``Harness.launch``."""
        ctx, _, _, endpoint, secret, urls, data = session
        prompts: tuple[Any, Any] = self.resolve_prompt(data)
        system, prompt = prompts
        messages = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [wire.message_to_wire(message) for message in prompt or ()]
        reach = {"timeout": self.config.tool_timeout}
        found = {"mcpServers": {name: {**reach, "url": url} for name, url in urls.items()}}
        # The address is verifiers' own, on this machine and without TLS; to read the certificates
        # would take longer than the request.
        async with (
            AsyncExitStack() as stack,
            httpx.AsyncClient(timeout=None, trust_env=False, verify=False) as http,
        ):
            tools, names, servers = await mcp.connect_mcp(found, stack)
            while True:
                answer = await http.post(
                    f"{endpoint}/chat/completions",
                    headers={"authorization": f"Bearer {secret}"},
                    json={"model": ctx.model, "messages": messages}
                    | ({"tools": tools} if tools else {}),
                )
                if not answer.is_success:
                    return vf.ProgramResult(1, "", answer.text)
                said = answer.json()["choices"][0]["message"]
                if not said.get("tool_calls"):
                    return vf.ProgramResult(0, "", "")
                messages.append(said)
                for call in said["tool_calls"]:
                    result = await _result(call["function"], names, servers)
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


async def _result(call: dict[str, str], names: dict[str, Any], servers: dict[str, Any]) -> Any:
    """What a tool returns, or what is wrong with the call, for the model to read."""
    name = call["name"]
    if name not in names:
        return f"error: unknown tool {name!r}; the tools are {', '.join(names)}"
    try:
        arguments = json.loads(call["arguments"] or "{}")
    except ValueError as error:
        return f"error: the arguments are no JSON: {error}"
    if not isinstance(arguments, dict):
        return "error: the arguments are no JSON object"
    return await mcp.call_mcp(servers, names, name, arguments)

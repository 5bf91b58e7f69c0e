"""A conversation in this process, for agents of verifiers that have no program of their own."""

from importlib import import_module
from typing import Any

import httpx

__all__ = ["Chat", "InProcess"]

vf: Any = import_module("verifiers.v1")
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
    """A conversation without tools, held in this process."""

    SUPPORTS_MCP = False
    SUPPORTS_TOOL_INTERCEPTION = False

    async def setup(self, runtime: Any) -> None:
        """Nothing to install."""

    async def launch(self, *session: Any) -> Any:
        """Ask the model once; the arguments are those of ``Harness.launch``."""
        ctx, _, _, endpoint, secret, _, data = session
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [wire.message_to_wire(message) for message in prompt or ()]
        # The address is verifiers' own, on this machine and without TLS; to read the certificates
        # would take longer than the request.
        async with httpx.AsyncClient(timeout=None, trust_env=False, verify=False) as http:
            answer = await http.post(
                f"{endpoint}/chat/completions",
                headers={"authorization": f"Bearer {secret}"},
                json={"model": ctx.model, "messages": messages},
            )
        return vf.ProgramResult(int(not answer.is_success), "", answer.text)

"""``legos chat``: chat with a model."""

from legos.cli.overrides import Integer, Key
from legos.records.names import POLICY


def chat(
    *,
    url: str | None = None,
    model: str | None = None,
    api_key: Key = None,
    adapter: str = POLICY,
    system: str = "",
    temperature: float = 1.0,
    max_tokens: Integer | None = None,
    seed: Integer | None = None,
) -> int:
    """Chat with a model in the terminal, in this process or on a server.

    Args:
        url: Address of a server, such as http://localhost:8000/v1.
        model: A model folder, a name on the hub, or "builtin"; by default the model that the
            adapter was trained on. With --url, the name of the model on the server.
        api_key: File with the API key of the server.
        adapter: RUN, RUN@STEP, RUN@best, an adapter folder, or base. With --url, the name of an
            adapter on the server, such as policy, policy@12 or base.
        system: System message at the start of the conversation.
        temperature: Sampling temperature; 0: the most probable token.
        max_tokens: Longest answer, in tokens; by default 512, or 32 with the built-in model.
        seed: Seed of the answers; the same seed gives the same answers.
    """
    from legos.apps.chat import chat as run

    return run(
        url=url,
        model=model,
        api_key=api_key if url is not None else None,
        adapter=adapter,
        system=system,
        temperature=temperature,
        max_tokens=max_tokens,
        seed=seed,
    )

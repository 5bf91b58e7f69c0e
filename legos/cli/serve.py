"""``legos serve``: serve a model and its adapters over HTTP."""

from legos.cli.output import Flag, show
from legos.cli.overrides import Amount, Count, Integer, Key, Limit, Several, Whole
from legos.records.message import Thinking


def serve(
    *,
    model: str | None = None,
    adapter: Several = (),
    host: str = "127.0.0.1",
    port: Integer = 8000,
    api_key: Key = None,
    max_batch: Count = 256,
    memory_limit_gib: Limit | None = None,
    max_queue: Whole = 1024,
    timeout_s: Limit = 600.0,
    max_body_mb: Limit = 4.0,
    max_adapters: Count = 64,
    thinking: Thinking | None = None,
    drain_s: Amount = 30.0,
    keep_awake: bool = True,
    log_prompts: Flag = False,
) -> None:
    """Serve a model and its adapters over an OpenAI-compatible HTTP interface.

    Args:
        model: A model folder, a name on the hub, or "builtin"; by default the model that the
            adapters were trained on.
        adapter: RUN, RUN@STEP, RUN@best or an adapter folder, served as "policy", or under another
            name as NAME=RUN; may be repeated.
        host: Address to listen on; addresses other than loopback need an API key.
        port: Port to listen on; 0: a free port.
        api_key: File with the key that every request must send as a bearer token.
        max_batch: Completions decoded in one batch.
        memory_limit_gib: Memory that the engine may use in all; by default most of the machine's.
        max_queue: Completions that may wait; further requests get status 429.
        timeout_s: Time limit of one request, in seconds.
        max_body_mb: Size limit of a request body, in MiB; uploads of adapters have their own.
        max_adapters: Adapters that may be live at the same time; further loads get status 409.
        thinking: Whether the model thinks before it answers, or how long, where its chat template
            has a variable for it; by default the same as in the training of the adapter.
        drain_s: Time that running requests get to finish after SIGTERM, in seconds.
        keep_awake: Keep macOS from sleeping while the server runs.
        log_prompts: Write prompts to the log.
    """
    from legos.apps.serve import serve as run
    from legos.server.options import ServerOptions

    options = ServerOptions.for_host(
        host,
        api_key=api_key,
        max_running=max_batch,
        max_queue=max_queue,
        request_timeout_s=timeout_s,
        max_body_bytes=int(max_body_mb * 2**20),
        max_adapters=max_adapters,
        log_prompts=log_prompts,
    )
    run(
        model=model,
        adapters=adapter,
        host=host,
        port=port,
        options=options,
        memory_gib=memory_limit_gib,
        thinking=thinking,
        drain_s=drain_s,
        keep_awake=keep_awake,
        say=show,
    )

"""``legos doctor``: facts about this machine, and checks of its device."""

from legos.cli.output import Flag, show
from legos.errors import ConfigError


def doctor(
    *architectures: str,
    self_test: Flag = False,
    model: str | None = None,
    models: Flag = False,
    json: Flag = False,
) -> int:
    """Report facts about this machine, and check that its device computes correctly.

    Args:
        architectures: With --models, the architectures to check, such as llama or gemma3n.
        self_test: Run the checks, which take some seconds; exit code 1 if one fails.
        model: Model for --self-test: a folder, a name on the hub, "builtin", or "small" (random
            weights), which is the default.
        models: Load a small random model of every architecture of mlx-lm, or of the given ones,
            as a run does, which takes a second for each, and print what legos can do with it; exit
            code 1 if one fails without a refusal.
        json: Print one JSON object.
    """
    from legos.apps.doctor import examine, try_architectures

    if model is not None and not self_test:
        raise ConfigError(f"--model {model} is for the checks; give --self-test too")
    if models:
        rows = try_architectures(architectures, show=(lambda _: None) if json else show)
        if json:
            show({"architectures": {row.pop("architecture"): row for row in rows}}, json=True)
        return 1 if any("error" in row.values() for row in rows) else 0
    if architectures:
        raise ConfigError(f"{architectures[0]!r} is not expected here, only after --models")
    report = examine(self_test=self_test, model=model or "small")
    show(report.as_dict() if json else report.facts, json=json)
    if not json:
        show(report.text())
    return 0 if report.healthy else 1

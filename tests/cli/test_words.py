"""Words of the command line that a command refuses, and the next step that it names."""

import pytest

from legos.cli.process import main


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("serve --memory-limit-gib inf", "for --memory-limit-gib. Expected a finite number."),
        ("serve --max-body-mb nan", "for --max-body-mb. Expected a finite number."),
        ("serve --timeout-s nan", "for --timeout-s. Expected a finite number."),
        ("serve --drain-s nan", "for --drain-s. Expected a finite number."),
        ("serve --max-batch 0", "for --max-batch. Must be >= 1."),
        ("serve --max-adapters 0", "for --max-adapters. Must be >= 1."),
        ("serve --timeout-s 0", "for --timeout-s. Must be > 0."),
        ("serve --max-body-mb 0", "for --max-body-mb. Must be > 0."),
        (
            "play nim --seat first=me --seat first=random",
            "--seat names the role 'first' twice; name it once",
        ),
        ("train --arena=kuhn nim", "'nim' is not expected here; options have names"),
        ("train --arena kuhn kuhn", "'kuhn' is not expected here; options have names"),
    ],
)
def test_a_refused_word_is_named(
    command: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command.split()) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        ("bench x", "--model x"),
        ("chat x", "--adapter x"),
        ("eval a b", "--against b"),
        ("imitate a b", "--model b"),
        ("play nim x", "--against x"),
    ],
)
def test_a_word_too_many_is_refused_with_an_option_that_the_command_has(
    command: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, option = command.split()[0], meant.split()[0]
    assert main(command.split()) == 2
    assert f"have names, for instance `legos {name} {meant}`; --help" in capsys.readouterr().err
    assert main([name, "--help"]) == 0
    assert option in capsys.readouterr().out


@pytest.mark.parametrize("command", ["arenas nim", "export a b --to c", "watch a b"])
def test_where_no_option_takes_such_a_word_none_is_named(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command.split()) == 2
    assert "is not expected here; options have names; --help lists" in capsys.readouterr().err

"""``legos --help`` lists the commands without importing any of them."""

import subprocess
import sys

from legos.cli.app import make_app


def test_the_list_of_commands_imports_none_of_them() -> None:
    code = (
        "import sys; from legos.cli.process import main; main(['--help']);"
        "heavy = {'numpy', 'pydantic', 'legos.config', 'mlx'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_list_of_commands_has_the_first_sentence_of_each() -> None:
    listed = make_app(brief=True, summaries=True)
    for name, command in make_app(brief=True).resolved_commands().items():
        if not name.startswith("-"):
            first = command.help.partition("\n\n")[0]
            assert listed[name].help == " ".join(first.split())

"""The most likely mistakes on the command line: each command, and what it prints."""

import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from string import Template

import pytest
from made_runs import made_run

from legos.cli.process import main

PRINTS = {  # command -> message, in which ... stands for any text
    "trian": 'Unknown command "trian". Did you mean "train"?...',
    "train kuhn": (
        "'kuhn' is not expected here; options have names, for instance "
        "`legos train --arena kuhn`; --help lists them"
    ),
    "train --stepz 3": "Unknown option: --stepz. Did you mean --steps?",
    "train --lr 3": "Unknown option: --lr. Did you mean --training.learning-rate?",
    "train --batch-size 3": "Unknown option: --batch-size. Did you mean --play.tasks-per-step?",
    "train --steps": (
        'Command "train" parameter --steps requires an argument. See `legos train --help`.'
    ),
    "train --steps ten": (
        "Invalid value for --steps: 'ten' is not a whole number. See `legos train --help`."
    ),
    "train --steps 0": "loop.steps is 0; expected greater than or equal to 1 (command line)",
    "train --training.lora-rank 2.5": "...--training.lora-rank: '2.5' is not a whole number...",
    "train --deterministic true": (
        "--deterministic takes no value: it is on where it is given; leave 'true' out"
    ),
    "train --training.loss pppo": (
        'Invalid value "pppo" for --training.loss. ... Did you mean "ppo"?'
    ),
    "train --play.credit gppo": "...'gppo', which is no credit rule; did you mean 'grpo'?...",
    "train --play.group-size 1 --play.credit grpo": (
        "play.group_size is 1 but play.credit 'grpo' compares the plays of a group; every "
        "advantage would be 0: use at least 2, or credit 'rae'..."
    ),
    "train --arena nmi": (
        "no arena is called 'nmi'; did you mean 'nim'?; one of your own is FILE.py:Class"
    ),
    "train --arena race": "'race' names a file; add its class as race.py:Class (it has Race)",
    "train --arena race.py": "'race.py' names a file; add its class as race.py:Class (it has Race)",
    "train --arena race.py:Rac": "race.py has no class 'Rac'; did you mean 'Race'?",
    "train --arena none.py:Race": "there is no file none.py in $here; start from where it is, ...",
    "train --arena syntax.py:Race": "cannot import syntax.py: SyntaxError: expected ':' (...2)",
    "train --arena needs.py:Race": (
        "cannot import needs.py: ModuleNotFoundError: No module named 'nopackage'; install it "
        "into the environment of ..."
    ),
    "train --arena typo.py:Race": (
        "cannot import typo.py: ImportError: cannot import name 'Gmae' from 'legos' (...); did you "
        "mean 'Game'?"
    ),
    "train --arena plain.py:Race": (
        "'Race' in plain.py is not a subclass of Arena or Game; write class Race(Game) or class "
        "Race(Arena)"
    ),
    "train --play.options.largst 9": "...takes no option 'largst'; did you mean 'largest'?",
    "train --model Qwen3": (
        "no model folder 'Qwen3'; give a folder, a hub name (org/model), or 'builtin'"
    ),
    "train --model m.gguf": "model 'm.gguf' is a file; give the folder with config.json, ...",
    "train --model empty": "empty is no model folder: config.json is missing; copy or download ...",
    "train --device cuda": 'Invalid value "cuda" for --device. Choose from: "mlx", "torch".',
    "train --generation.max-tokens 99999": (
        "generation.max_tokens is 99999 but model 'builtin' has a context of 2048 tokens for "
        "prompt and completion together; give a smaller number"
    ),
    "train --config none.toml": (
        "cannot read the configuration none.toml: No such file or directory; `legos train "
        "--dry-run > none.toml` writes one"
    ),
    "train --config bad.toml": "bad.toml is not valid TOML: ... (at line 1, column 10)",
    "train --config key.toml": (
        "training.lora_rnk (file key.toml) is not a setting; did you mean 'training.lora_rank'?"
    ),
    "train --config kind.toml": "loop.steps is 'many'; expected a valid integer (file kind.toml)",
    "train --resume nowhere": (
        "nowhere holds no run to resume: it has no config.toml; `legos runs` lists those in runs"
    ),
    "train --resume run --arena kuhn": (
        "arena is 'kuhn' (command line) but the run in run has 'nim'; leave it out, or start a new "
        "run"
    ),
    "train --out run": "run already holds a run; go on with --resume run, or choose another --out",
    "train --mix nim": "--mix is 'nim'; expected a name and its share, such as --mix nim=0.5",
    "train --play.opponents nobody=1": "play.opponents names 'nobody', which is no opponent: ...",
    "train --server localhost:8000": (
        "base_url 'localhost:8000' is no HTTP address; expected one such as "
        "http://localhost:8000/v1"
    ),
    "train --server http://127.0.0.1:1": (
        "no server answers at http://127.0.0.1:1/v1 (...); start one with `legos serve`, ..."
    ),
    "train --serve 80000": "loop.serve_port is 80000; expected less than or equal to 65535...",
    "eval": 'Command "eval" parameter RUN requires an argument. See `legos eval --help`.',
    "eval run": "run holds no adapter yet; train it first ... legos train --resume run",
    "serve run": "'run' is not expected here; ... `legos serve --adapter run`; --help lists them",
    "serve --port $port": "cannot listen on 127.0.0.1 port $port: ...; give another --port",
    "serve --host 0.0.0.0": (
        "host '0.0.0.0' can be reached by others; give --api-key-file or set LEGOS_API_KEY, or "
        "listen on 127.0.0.1"
    ),
    "serve --api-key x": "--api-key ...: ... give --api-key-file FILE, or set LEGOS_API_KEY",
    "play nim --seat third=me": "--seat names the role 'third'; known: first, second",
    "play nim --against nobody": (
        "nobody holds no run and no adapter: ...; other players are random, optimal, base, "
        "FILE.py:Class and http://..."
    ),
    "tournament run": "a tournament needs two different members and has run; name another one, ...",
    "imitate none.jsonl": "none.jsonl cannot be read: No such file or directory",
    "imitate none.jsonll": "there is no file none.jsonll; endings of files are .jsonl, ...",
    "imitate bad.jsonl": "bad.jsonl:2: the row is no JSON: Expecting ',' delimiter: ...",
    "imitate keys.jsonl": (
        "keys.jsonl:1: the row has question, answer; expected messages, or prompt and completion"
    ),
    "runs run": "'run' is not expected here; `legos runs show run` describes a run",
    "export run": 'Command "export" parameter --to requires an argument. See ...',
    "init My-Game": "'My-Game' cannot be the name of an arena's file; give a Python name ...",
    "init run": "run exists and is not empty; give another name, or --to a new one",
}
FILES = {
    "race.py": "from legos import Game\nclass Race(Game): pass\n",
    "syntax.py": "from legos import Game\nclass Race(Game)\n",
    "needs.py": "import nopackage\n",
    "typo.py": "from legos import Gmae\n",
    "plain.py": "class Race: pass\n",
    "m.gguf": "GGUF",
    "bad.toml": "[training\n",
    "key.toml": "[training]\nlora_rnk = 3\n",
    "kind.toml": '[loop]\nsteps = "many"\n',
    "bad.jsonl": '{"prompt": "a", "completion": "b"}\n{"prompt": "a"\n',
    "keys.jsonl": '{"question": "a", "answer": "b"}\n',
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the mistakes, and a run without adapters."""
    folder = tmp_path_factory.mktemp("place")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "empty").mkdir()
    made_run(folder / "run")
    return folder


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A port that is in use."""
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        yield busy.getsockname()[1]


@pytest.fixture(autouse=True)
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.delenv("LEGOS_API_KEY", raising=False)


@pytest.mark.parametrize(("command", "message"), PRINTS.items(), ids=PRINTS)
def test_a_mistake_is_one_message(
    command: str, message: str, place: Path, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(place.rglob("*"))
    given = {"here": str(place), "port": str(port)}
    assert main(Template(command).substitute(given).split()) == 2
    parts = Template(message).substitute(given).split("...")
    printed = capsys.readouterr().err
    shown = " ".join(printed.split())
    assert re.fullmatch(".*".join(map(re.escape, ["error: " + parts[0], *parts[1:]])), shown)
    assert "Traceback" not in printed
    for cache in place.rglob("__pycache__"):
        shutil.rmtree(cache)
    assert sorted(place.rglob("*")) == before

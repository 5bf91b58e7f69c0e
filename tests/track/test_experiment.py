"""What a run sends to a service of experiments, with a library that records it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from made_records import make_episode, make_turn
from msgspec.structs import replace

from legos.losses.alarms import Alarm
from legos.records.episode import Episode
from legos.run.key_figures import key_figures
from legos.track.experiment import ExperimentTracker, grouped


class Artifact:
    """Files under a name."""

    def __init__(self, name: str, type: str) -> None:
        self.name, self.type = name, type
        self.files: list[str] = []

    def add_file(self, path: str) -> None:
        self.files.append(Path(path).name)


class Service:
    """A library and its run, which record what they get."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: list[tuple[int, dict[str, Any]]] = []
        self.artifacts: list[tuple[str, list[str]]] = []
        self.alerts: list[dict[str, Any]] = []
        self.finished = False
        self.library = SimpleNamespace(
            __name__="wandb",
            Table=lambda columns, data: [dict(zip(columns, row, strict=True)) for row in data],
            Histogram=lambda np_histogram: np_histogram,
            Artifact=Artifact,
            AlertLevel=SimpleNamespace(ERROR="ERROR", WARN="WARN"),
        )

    def tracker(self, **options: Any) -> ExperimentTracker:
        return ExperimentTracker(self.library, self, self.folder, better=key_figures, **options)

    def log(self, values: dict[str, Any], step: int, commit: bool = False) -> None:
        self.rows.append((step, values))

    def alert(self, **about: Any) -> None:
        self.alerts.append(about)

    def log_artifact(self, artifact: Artifact, aliases: list[str]) -> None:
        assert artifact.files == ["adapters.safetensors"]
        self.artifacts.append((artifact.name, aliases))

    def finish(self) -> None:
        self.finished = True


@pytest.fixture
def service(tmp_path: Path) -> Service:
    """A service and a run folder with the adapters of four steps."""
    folder = tmp_path / "nim-1"
    for version in range(5):
        place = folder / "adapters" / f"v{version}"
        place.mkdir(parents=True)
        (place / "adapters.safetensors").write_bytes(b"")
    return Service(folder)


def steps_of(service: Service) -> list[tuple[int, int]]:
    return [(row, values["step"]) for row, values in service.rows]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("loss", "train/loss"),
        ("reward/first", "train/reward/first"),
        ("rival/loss", "train/rival/loss"),
        ("player/loss", "train/player/loss"),  # of a policy of this name
        ("eval/reward_mean", "eval/reward_mean"),
        ("eval/metric_s", "eval/metric_s"),
        ("arena/turns", "arena/turns"),
        ("batches/nim/reward_mean", "arena/nim/reward_mean"),
        ("tokens_trained", "loop/tokens_trained"),
        ("filtered/stale_tokens", "loop/filtered/stale_tokens"),
        ("trained/solver_tokens", "loop/trained/solver_tokens"),
        ("staleness_max", "loop/staleness_max"),
        ("loop/engine_idle_share", "loop/engine_idle_share"),
        ("loop/seconds_per_step", "time/seconds_per_step"),
        ("play/tokens_per_s", "time/tokens_per_s"),
        ("step_s", "time/step_s"),
    ],
)
def test_every_metric_has_one_of_five_groups(name: str, found: str) -> None:
    assert grouped(name) == found


def test_a_resumed_run_goes_on_with_ascending_steps(service: Service) -> None:
    before = service.tracker()
    before.log({"eval/exploitability": 0.9}, step=0)
    for step in (1, 2, 3):
        before.log({"step": step, "loss": 0.5, "kl": None}, step=step)
    before.log({"eval/exploitability": 0.8}, step=2)  # it ended while step 3 was trained
    resumed = service.tracker()  # the process before was killed, and its checkpoint is of step 1
    for step in (2, 3, 4):
        resumed.log({"step": step, "loss": 0.25}, step=step)
    resumed.log({"eval/exploitability": 0.7}, step=2)
    resumed.log({"eval/exploitability": 0.6}, step=4)
    assert steps_of(service) == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 2), (5, 4), (6, 4)]
    assert service.rows[1][1] == {"train/loss": 0.5, "step": 1}
    assert service.rows[-1][1] == {"eval/exploitability": 0.6, "step": 4}


def test_the_best_adapter_and_the_newest_are_kept_over_processes(service: Service) -> None:
    tracker = service.tracker()
    tracker.log({"eval/exploitability": 0.9}, step=0)
    for step in (1, 2):
        tracker.log({"loss": 0.5, "policy_version": step}, step=step)
    for step, score in ((1, 0.5), (2, 0.7)):  # they ended while step 2 was trained
        tracker.log({"eval/exploitability": score}, step=step)
    tracker.close()
    assert service.finished
    assert service.artifacts == [
        ("nim-1-adapter", ["best", "latest", "adapter-v0"]),
        ("nim-1-adapter", ["best", "latest", "adapter-v1"]),
        ("nim-1-adapter", ["latest", "adapter-v2"]),
    ]
    resumed = service.tracker()
    resumed.log({"loss": 0.5, "policy_version": 3}, step=3)
    resumed.log({"eval/exploitability": 0.6}, step=3)  # worse than in step 1
    assert len(service.artifacts) == 3


def test_the_adapters_of_all_policies_are_kept(service: Service) -> None:
    for version in range(3):
        place = service.folder / "adapters" / "solver" / f"v{version}"
        place.mkdir(parents=True)
        (place / "adapters.safetensors").write_bytes(b"")
    tracker = service.tracker()
    tracker.log({"eval/exploitability": 0.9}, step=0)
    for step, version in ((1, 1), (2, 1), (3, 2)):  # in step 2, that of the solver is not applied
        versions = {"policy_version": step, "solver/policy_version": version}
        tracker.log({"loss": 0.5, **versions}, step=step)
    tracker.log({"eval/exploitability": 0.5}, step=2)
    tracker.close()
    assert service.artifacts == [
        ("nim-1-adapter-solver", ["best", "latest", "adapter-v0"]),
        ("nim-1-adapter", ["best", "latest", "adapter-v0"]),
        ("nim-1-adapter-solver", ["best", "latest", "adapter-v1"]),
        ("nim-1-adapter", ["best", "latest", "adapter-v2"]),
        ("nim-1-adapter-solver", ["latest", "adapter-v2"]),
        ("nim-1-adapter", ["latest", "adapter-v3"]),
    ]


def test_an_evaluation_that_a_resumed_run_makes_again_may_be_the_best(service: Service) -> None:
    stopped = service.tracker()
    stopped.log({"eval/exploitability": 0.9}, step=0)
    for step in (1, 2):
        stopped.log({"loss": 0.5, "policy_version": step}, step=step)
    resumed = service.tracker()  # the evaluation of step 2 was cancelled
    resumed.log({"eval/exploitability": 0.5}, step=2)
    assert service.artifacts[-1] == ("nim-1-adapter", ["best", "latest", "adapter-v2"])
    again = service.tracker()  # a process that was stopped before its first step
    again.close()
    assert service.artifacts[-1] == ("nim-1-adapter", ["latest", "adapter-v2"])


def test_the_newest_adapter_is_that_of_the_resumed_run(service: Service) -> None:
    stopped = service.tracker()
    for step in (1, 2, 3, 4):
        stopped.log({"loss": 0.5, "policy_version": step}, step=step)
    resumed = service.tracker()  # from the checkpoint of step 1
    resumed.log({"loss": 0.5, "policy_version": 2}, step=2)
    resumed.close()
    assert service.artifacts == [("nim-1-adapter", ["latest", "adapter-v2"])]


def test_the_account_of_what_was_logged_is_replaced_as_a_whole(service: Service) -> None:
    tracker = service.tracker()
    tracker.log({"loss": 0.5}, step=1)
    account = service.folder / "wandb" / "logged.json"
    before = account.read_bytes()
    (service.folder / "link").hardlink_to(account)
    tracker.log({"loss": 0.5}, step=2)
    assert (service.folder / "link").read_bytes() == before != account.read_bytes()


def test_keep_best_decides_which_adapter_is_the_best(service: Service) -> None:
    tracker = service.tracker(best_by="-illegal_share")
    for step, share in ((1, 0.5), (2, 0.25), (3, 0.75)):
        tracker.log({"loss": 0.5, "policy_version": step}, step=step)
        tracker.log({"eval/exploitability": 0.5, "eval/illegal_share": share}, step=step)
    assert [aliases[-1] for _, aliases in service.artifacts] == ["adapter-v1", "adapter-v2"]
    changed = service.tracker(best_by="-exploitability")
    for step, value in ((4, 0.9), (5, 0.95)):
        changed.log({"loss": 0.5, "policy_version": step}, step=step)
        changed.log({"eval/exploitability": value, "eval/illegal_share": 0.1}, step=step)
    assert [aliases[-1] for _, aliases in service.artifacts][2:] == ["adapter-v4"]


def played(count: int) -> list[Episode]:
    return [make_episode({"only": float(reward)}) for reward in range(count)]


def test_an_evaluation_has_a_table_of_plays_from_the_worst_to_the_best(service: Service) -> None:
    tracker = service.tracker()
    failed = replace(played(1)[0], error="it broke", failure="failed")
    tracker.plays([*played(100), failed], step=0, evaluation=True)
    tracker.log({"eval/reward_mean": 0.5}, step=0)
    [(_, values)] = service.rows
    table = values["eval/plays"]
    assert len(table) == 16
    assert [table[0]["reward"], table[1]["reward"], table[-1]["reward"]] == [None, 6.0, 99.0]
    assert (table[0]["failure"], table[-1]["failure"]) == ("failed", "")
    assert (table[-1]["kind"], table[-1]["step"], table[-1]["rewards"]) == (
        "evaluation",
        0,
        "only +99",
    )
    assert "only> " in table[-1]["play"]
    tracker.plays(played(3), step=2, evaluation=False)  # an exact evaluation plays nothing
    tracker.log({"eval/reward_mean": 0.5}, step=1)
    rows = service.rows[-1][1]["eval/plays"]
    assert [(row["kind"], row["step"]) for row in rows] == [("training", 2)] * 3


def test_the_table_has_the_rewards_of_turns_too(service: Service) -> None:
    tracker = service.tracker()
    play = make_episode({"only": 0.0}, turns={"only": [make_turn(reward=1.0)]})
    tracker.plays([play], step=0, evaluation=True)
    tracker.log({"eval/reward_mean": 0.5}, step=0)
    [(_, values)] = service.rows
    assert [row["rewards"] for row in values["eval/plays"]] == ["only +1"]


def test_every_ten_steps_have_histograms(service: Service) -> None:
    tracker = service.tracker()
    for step in (9, 10, 11):
        ratios = lambda: np.array([0.5, 1.0, 1.0], np.float32)  # noqa: E731
        tracker.plays(played(4), step=step, evaluation=False, ratios=ratios)
        tracker.log({"loss": 0.5}, step=step)
    assert steps_of(service) == [(0, 9), (1, 10), (2, 10), (3, 11)]
    found = {name: values for name, values in service.rows[1][1].items() if name != "step"}
    assert set(found) == {
        f"train/histogram/{name}" for name in ("rewards", "answer_tokens", "ratios")
    }
    counts, edges = found["train/histogram/ratios"]
    assert (counts.sum(), edges[0], edges[-1]) == (3, 0.5, 1.0)
    assert found["train/histogram/rewards"][0].sum() == 4


def test_alarms_become_alerts(service: Service) -> None:
    alarm = Alarm(level="warning", metric="clip_fraction", text="clip_fraction is 0.5")
    service.tracker().alert(alarm, step=7)
    assert service.alerts == [
        {"title": "step 7: clip_fraction", "text": "clip_fraction is 0.5", "level": "WARN"}
    ]


def test_rows_may_have_the_numbers_of_their_steps(service: Service) -> None:
    tracker = service.tracker(step_column=False)
    tracker.log({"loss": 0.5}, step=5)
    tracker.log({"eval/reward_mean": 0.5}, step=4)
    assert [(row, "step" in values) for row, values in service.rows] == [(5, False), (4, False)]

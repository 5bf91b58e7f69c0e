"""By how many versions engines are behind."""

from legos.remote.ray.lags import Lags


def test_lags_count_versions_of_the_adapter_where_most_are_missing() -> None:
    lags = Lags(("a", "b"))
    assert lags.now() == {"a": 0, "b": 0}
    for _ in range(3):
        lags.loaded("a", "policy", lags.publish("policy"))
    assert lags.now() == {"a": 0, "b": 3}
    lags.loaded("b", "policy", 1)  # a late acknowledgement of the first
    lags.loaded("a", "rival", lags.publish("rival"))
    assert lags.now() == {"a": 0, "b": 2}
    lags.loaded_all("b")
    assert lags.now() == {"a": 0, "b": 0}
    lags.lost("a")
    assert lags.now() == {"a": 3, "b": 0}
    lags.drop("policy")
    assert lags.now() == {"a": 1, "b": 0}


def test_a_version_that_was_refused_is_nobody_s_lag() -> None:
    lags = Lags(("a",))
    lags.loaded("a", "policy", lags.publish("policy"))
    lags.publish("policy")
    lags.withdraw("policy")
    assert lags.now() == {"a": 0}

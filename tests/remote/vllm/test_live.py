"""Which names the client may put into requests, and when a replaced adapter is unused."""

import pytest
from published import small_adapter

from legos.errors import RequestError
from legos.remote.vllm.live import LiveAdapters, ServedModel


def served(version: int, *, adapter: str = "policy") -> ServedModel:
    model = f"{adapter}@{version}+run+digest{version}"
    return ServedModel(model=model, adapter=small_adapter(version, name=adapter))


def test_new_requests_get_the_announced_version_and_a_replaced_one_stays_until_its_last() -> None:
    live, old, new = LiveAdapters(), served(1), served(2)
    live.announce(old)
    with live.use("policy") as first, live.use("policy@1"):
        live.announce(new)
        with live.use("policy") as second, live.use("policy@1") as pinned:
            assert first is pinned is old
            assert second is new
        assert not live.unused()
    assert live.unused() == [old]
    assert not live.unused()  # taken out once


def test_the_base_is_the_server_s_model_until_an_adapter_without_effect_takes_its_name() -> None:
    live = LiveAdapters()
    live.announce(ServedModel(model="tiny", adapter=None))
    with live.use("base") as base:
        assert (base.model, base.version) == ("tiny", 0)
    live.announce(served(0, adapter="base"))
    with live.use("base") as base:
        assert base.model == "base@0+run+digest0"
    assert not live.unused()  # the model itself cannot be unloaded


def test_what_is_not_live_is_refused_by_name() -> None:
    live, only = LiveAdapters(), served(3)
    live.announce(only)
    with pytest.raises(RequestError, match=r"'polcy' is not live.*did you mean 'policy'"):
        live.use("polcy").__enter__()
    with pytest.raises(RequestError, match="'policy@4' is not live; 'policy' is at 3"):
        live.use("policy@4").__enter__()
    live.withdraw("policy")
    with pytest.raises(RequestError, match="'policy' is not live"):
        live.use("policy").__enter__()
    assert live.unused() == [only]

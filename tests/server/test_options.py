"""What a server may be started with."""

import pytest

from legos.errors import ConfigError
from legos.server.options import ServerOptions


def test_others_than_loopback_need_a_key() -> None:
    with pytest.raises(ConfigError, match="LEGOS_API_KEY"):
        ServerOptions.for_host("0.0.0.0", api_key=None)
    assert ServerOptions.for_host("0.0.0.0", api_key="k").allowed_hosts == ()
    assert "localhost" in ServerOptions.for_host("127.0.0.1", api_key=None).allowed_hosts


@pytest.mark.parametrize("key", ["schl\u00fcssel", "s3cret\n", " s3cret", ""])
def test_a_key_that_no_request_can_send_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="the API key"):
        ServerOptions(api_key=key)

"""Fixtures of several test files of runs."""

import pytest
from run_world import World


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A run that nothing disturbed."""
    world = World(tmp_path_factory.mktemp("runs") / "whole").start()
    assert world.go()
    return world

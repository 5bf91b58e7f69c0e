"""What all tests share: how Hypothesis looks for counterexamples."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "legos",
    deadline=None,  # a busy machine is no bug
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("legos")

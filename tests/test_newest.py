"""What `make next` installs."""

from tests.newest import requirements


def test_upper_limits_end_only_beyond() -> None:
    allowed, beyond = requirements(beyond=False), requirements(beyond=True)
    gymnasium = "gymnasium[atari,classic-control]"
    assert allowed.keys() == beyond.keys() > {"tensorflow", "pytest", gymnasium}
    assert "<" in allowed["tensorflow"]
    assert allowed["tensorflow"].startswith(beyond["tensorflow"] + ",<")
    different = {name for name in allowed if allowed[name] != beyond[name]}
    assert different == {"tensorflow", gymnasium, "ale-py"}

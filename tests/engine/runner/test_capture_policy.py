"""When a shape is captured although rows wait: as soon as not doing so has cost as much."""

from engine.runner.capture_policy import CapturePolicy


def test_the_first_capture_is_made_and_measured():
    assert CapturePolicy().capture_now("a")


def test_a_capture_that_is_the_shorter_one_is_made_at_once():
    costs = CapturePolicy()
    costs.captured("a", 10.0)
    costs.launched("b", 12.0, 12.5)
    assert costs.capture_now("c")


def test_passes_in_which_launching_held_up_the_device_add_up_to_a_capture():
    costs = CapturePolicy()
    costs.captured("a", 10.0)
    for _ in range(3):
        assert not costs.capture_now("b")
        costs.launched("b", 3.0, 3.1)
    assert not costs.capture_now("b")
    costs.launched("b", 3.0, 3.1)
    assert costs.capture_now("b")
    assert not costs.capture_now("c"), "each shape pays for itself"
    costs.captured("b", 10.0)
    assert not costs.capture_now("b")


def test_launching_that_the_device_did_not_notice_is_free():
    costs = CapturePolicy()
    costs.captured("a", 10.0)
    for _ in range(100):
        costs.launched("b", 3.0, 8.0)
    assert not costs.capture_now("b")

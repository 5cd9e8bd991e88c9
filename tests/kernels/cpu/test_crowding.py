"""When passes go on one thread, and when the team comes back."""

import pytest

from kernels.cpu.crowding import RECENT, Crowding, idle_seconds


class Machine:
    """A clock that passes move on, and cores that other programs want or leave."""

    def __init__(self, tells_idle: bool = True) -> None:
        self.now, self.idle, self.crowded, self.tells_idle = 0.0, 0.0, False, tells_idle
        self.crowding = Crowding(lambda: self.now, lambda: self.idle if self.tells_idle else None)
        self.ways: list[bool] = []

    def run(self, passes: int, spike_every: int = 0) -> float:
        """Passes of a team of four threads; returns the part that one thread computed."""
        self.ways.clear()
        for number in range(passes):
            alone = self.crowding.alone
            took = (0.006 if alone else 0.1) if self.crowded else (0.005 if alone else 0.002)
            if spike_every and number % spike_every == 0:
                took += 0.2
            self.now += took
            self.idle += 0.0 if self.crowded else took * (3 if alone else 0)
            self.ways.append(alone)
            self.crowding.took(took / 0.002, 4)
        return sum(self.ways) / passes


def test_a_quiet_machine_keeps_the_team():
    assert Machine().run(500) == 0


def test_single_long_passes_change_nothing():
    assert Machine().run(500, spike_every=RECENT) == 0


@pytest.mark.parametrize("tells_idle", [True, False])
def test_a_crowded_machine_has_one_thread_and_the_team_comes_back_behind(tells_idle):
    machine = Machine(tells_idle)
    machine.run(20)
    machine.crowded = True
    machine.run(20)
    assert machine.crowding.alone
    assert machine.run(3_000) >= (1.0 if tells_idle else 0.99)
    machine.crowded = False
    machine.run(4_000)
    assert not machine.crowding.alone and not any(machine.ways[-100:])


def test_where_one_thread_is_slower_still_the_team_stays():
    crowding = Crowding(lambda: 0.0, lambda: None)
    for _ in range(100):
        crowding.took(8.0 if crowding.alone else 4.0, 16)
    assert not crowding.alone


def test_idle_seconds_grow_or_are_not_told():
    first, second = idle_seconds(), idle_seconds()
    assert first is None or 0 <= first <= second

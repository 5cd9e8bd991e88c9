"""How many threads a team has beside other programs."""

import pytest
import torch

from kernels.cpu.free_cores import Team, busy_seconds


class Machine:
    """Cores, of which others use some; the team's threads take what is left, up to a whole core each."""

    def __init__(self, cores: int = 4, tells: bool = True) -> None:
        self.cores, self.tells, self.others, self.now, self.busy, self.own = cores, tells, 0.0, 0.0, 0.0, 0.0
        self.team = Team(lambda: self.busy if tells else None, lambda: self.own, lambda: self.now, cores)

    def run(self, seconds: float, *, at_work: float = 1.0) -> int:
        """Passes of 10 ms each for so long, of which the team computes a part; returns its threads then."""
        for _ in range(round(seconds * 100)):
            self.team.fit()
            threads = torch.get_num_threads()
            share = at_work * min(1.0, (self.cores - self.others) / threads)
            self.now += 0.01
            self.own += 0.01 * share
            self.busy += 0.01 * min(self.cores, self.others + threads * share)
        return torch.get_num_threads()


@pytest.fixture(autouse=True)
def four_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def test_a_free_machine_keeps_all_threads():
    assert Machine().run(5) == 4


@pytest.mark.parametrize(("others", "threads"), [(0.3, 4), (1.0, 3), (2.0, 2), (3.0, 1), (3.6, 1)])
def test_cores_that_others_use_are_left_to_them_and_come_back(others, threads):
    machine = Machine()
    machine.run(1)
    machine.others = others
    assert machine.run(3) == threads
    machine.others = 0.0
    assert machine.run(3) == 4


def test_cores_that_are_not_the_teams_do_not_matter():
    machine = Machine(cores=8)
    machine.others = 3.5
    assert machine.run(3) == 4


def test_what_others_did_while_the_thread_waited_does_not_count():
    machine = Machine()
    machine.run(1)
    machine.others = 4.0
    assert machine.run(5, at_work=0.0) == 4


def test_nothing_is_done_where_the_system_tells_nothing():
    machine = Machine(tells=False)
    machine.others = 3.0
    assert machine.run(3) == 4


def test_a_number_that_was_set_since_is_the_most():
    machine = Machine()
    machine.run(1)
    torch.set_num_threads(2)
    assert machine.run(2) == 2
    machine.others = 3.0
    assert machine.run(3) == 1
    machine.others = 0.0
    assert machine.run(3) == 2


def test_busy_seconds_grow_or_are_not_told():
    first, second = busy_seconds(), busy_seconds()
    assert first is None or 0 < first <= second

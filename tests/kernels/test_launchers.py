"""Launchers are made under one lock, however often that is asked for."""

import threading
import time
from types import SimpleNamespace

from kernels import launchers


def test_no_two_are_made_at_once(monkeypatch):
    busy, most, made = [], [], []

    class Launcher:
        def __init__(self, source, metadata) -> None:
            busy.append(source)
            most.append(len(busy))
            time.sleep(0.002)
            busy.remove(source)
            made.append((source, metadata))

    active = SimpleNamespace(launcher_cls=Launcher)
    monkeypatch.setattr(launchers, "driver", SimpleNamespace(active=active))
    launchers.make_one_at_a_time()
    locked = active.launcher_cls
    launchers.make_one_at_a_time()
    assert active.launcher_cls is locked
    threads = [threading.Thread(target=active.launcher_cls, args=(index, -index)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert sorted(made) == [(index, -index) for index in range(6)]

import os
import signal
import subprocess
import sys

import pytest

from placebench.host.signals import ENDING, Stopped, StopSignals, raised_signals


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_by_which_a_process_is_asked_to_end_is_noted_or_raised(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # tests that a shell has started in the background ignore some
    try:
        with StopSignals() as signals:
            signal.raise_signal(number)
        assert signals.received is number
        with pytest.raises(Stopped, match=number.name) as stopped, raised_signals():
            signal.raise_signal(number)
        assert stopped.value.exit_code == 128 + number
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_a_signal_that_a_parent_has_blocked_is_noted() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
    assert signals.received is signal.SIGTERM


def test_it_is_told_how_a_process_ended_though_a_parent_did_not_want_to_know() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with StopSignals():
            assert subprocess.run([sys.executable, "-c", "raise SystemExit(11)"], check=False).returncode == 11
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.parametrize("entered", [StopSignals, raised_signals])
def test_a_signal_that_was_ignored_before_stays_so(entered: type[StopSignals]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with entered():
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)

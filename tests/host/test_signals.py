import signal

import pytest

from placebench.host.signals import ENDING, Stopped, StopSignals, raised_signals


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_by_which_a_process_is_asked_to_end_is_noted_or_raised(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopSignals() as signals:
        signal.raise_signal(number)
    assert signals.received is number
    with pytest.raises(Stopped, match=number.name) as stopped, raised_signals():
        signal.raise_signal(number)
    assert stopped.value.exit_code == 128 + number
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("entered", [StopSignals, raised_signals])
def test_a_signal_that_was_ignored_before_stays_so(entered: type[StopSignals]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with entered():
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)

"""Communication that names no operation is communication all the same."""

from tests.tables import trace_of
from tests.texts import texts

from meshscope.analyze import diagnose
from meshscope.analyze.account.kernels.breakdown import device_breakdown


def of_two_ranks(**more):
    """Return a step of 100 ms on two ranks: 40 computing, then 50 of a transfer without a name."""
    ms = 1_000_000
    kernels = [
        {"rank": rank, "category": category, "start_ns": start * ms, "dur_ns": dur * ms}
        for rank in (0, 1)
        for category, start, dur in (("compute", 0, 40), ("communication", 40, 50))
    ]
    steps = [{"rank": rank, "dur_ns": 100 * ms} for rank in (0, 1)]
    return trace_of(step=steps, kernel=kernels, **more)


def test_the_account_and_the_breakdown_agree():
    """Fails when one command calls idle what another calls communication: 50 of 100 ms."""
    trace = of_two_ranks()
    bars = {bar.name: bar.dur_ns for bar in diagnose(trace).waterfall}
    assert bars["exposed_sums"] == 50_000_000
    assert device_breakdown(trace)["exposed_communication_ns"].tolist() == [50_000_000] * 2


def test_nobody_is_sent_to_the_hosts_for_it():
    """Fails when a finding counts transfers as idle time: of the 100 ms only the last 10 are idle."""
    found = diagnose(of_two_ranks())
    idle = [one for one in found.findings if one.kind.value in ("host_stall", "launch_bound")]
    assert [(one.cost_frac, "cause unknown" in str(one.claim)) for one in idle] == [(0.1, True)]
    assert not any("o communication was recorded" in limit for limit in texts(found.limits))


def test_the_limits_say_how_much_of_it_there_is():
    """Fails when half of a step is in a class of its own and nothing tells why: 50 %."""
    limits = texts(diagnose(of_two_ranks()).limits)
    assert any("names no operation takes 50.0 %" in limit for limit in limits)


def test_a_capture_without_any_still_says_so():
    """Fails when the sentence on unmatched transfers stands where nothing was transferred."""
    found = diagnose(trace_of(step=[{"dur_ns": 100}], kernel=[{"start_ns": 0, "dur_ns": 90}]))
    assert any("o communication was recorded" in limit for limit in texts(found.limits))
    assert not any("names no operation" in limit for limit in texts(found.limits))

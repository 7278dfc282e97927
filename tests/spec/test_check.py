"""The driver of the checks: who is asked, what is found, in which order reasons come."""

from collections.abc import Iterator

from placebench.errors import UsageError
from placebench.spec.check import Check, Facts, collect


def too_many(apples: int) -> Iterator[str]:
    if apples > 2:
        yield f"{apples} apples"


def unlike(apples: int, pears: int = 0) -> Iterator[str]:
    yield f"{apples} apples and {pears} pears"


def refuse() -> Iterator[str]:
    raise UsageError("nothing today", "nor tomorrow")


def count_apples(basket: str, facts: Facts) -> None:
    facts.add(apples=len(basket))


def test_every_reason_is_kept_once_in_the_order_of_the_checks() -> None:
    checks = [Check(unlike), Check(refuse), Check(too_many), Check(unlike)]
    assert collect(checks, Facts(apples=3)).lines == (
        "3 apples and 0 pears",
        "nothing today",
        "nor tomorrow",
        "3 apples",
    )


def test_a_check_that_needs_what_nobody_knows_is_not_asked_and_all_others_are() -> None:
    checks = [Check(too_many, {"kind"}), Check(too_many, settled={"size"}), Check(unlike), Check(lambda plums: plums)]
    known = ("3 apples", "3 apples and 0 pears")
    assert collect(checks, Facts(apples=3)).lines == known
    assert collect(checks, Facts(apples=3, plums=("a plum",))).lines == (*known, "a plum")
    assert collect(checks[:1], Facts({"kind"}, apples=3)).lines == ()
    assert collect(checks[1:2], Facts({"size"}, apples=3)).lines == ()
    assert collect(checks, Facts({"kind", "size"}, apples=3)).lines == known[1:]
    assert collect(checks, Facts(apples=None)).lines == ()
    assert collect(checks, Facts(pears=3)).lines == ()


def test_what_does_not_go_together_is_known_and_not_settled() -> None:
    facts = Facts(apples=3)
    facts.conflicting.add("size")
    assert collect([Check(too_many, {"size"})], facts).lines == ("3 apples",)
    assert collect([Check(too_many, settled={"size"})], facts).lines == ()


def test_a_check_can_do_without_what_has_a_default() -> None:
    assert collect([Check(unlike)], Facts(apples=1, pears=2)).lines == ("1 apples and 2 pears",)


def test_what_a_check_finds_is_known_to_those_after_it_alone() -> None:
    facts = Facts(basket="iii")
    assert collect([Check(too_many), Check(count_apples), Check(unlike)], facts).lines == ("3 apples and 0 pears",)
    assert facts["apples"] == 3
    assert "pears" not in facts
    assert collect([Check(count_apples, {"basket"}), Check(too_many)], Facts({"basket"}, basket="iii")).lines == ()

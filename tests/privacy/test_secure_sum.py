"""Secure sums: exact whatever clients are lost, void below the threshold, refused where a server cheats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cryptography")

from tests.attacks import attack
from tests.privacy.summing import LIKE, STEPS, Sum, TestIdentity, client, terms, vector
from unisono.privacy.secure_sum import Card, Revealed, SumRefusedError, SumTerms, lowest_threshold
from unisono.privacy.secure_sum_client import ClientSum
from unisono.privacy.secure_sum_server import ServerSum, VoidSumError


@st.composite
def losses(draw: st.DrawFn) -> tuple[int, dict[str, list[int]]]:
    number = draw(st.sampled_from([3, 4, 7, 10]))
    gone = draw(st.sets(st.integers(0, number - 1), max_size=number - lowest_threshold(number)))
    lost: dict[str, list[int]] = {}
    for one in sorted(gone):
        lost.setdefault(draw(st.sampled_from(STEPS)), []).append(one)
    return number, lost


@given(losses(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_sum_of_the_survivors_is_exact_whoever_is_lost(case: tuple[int, dict[str, list[int]]], direct: bool) -> None:
    number, lost = case
    played = Sum(terms(number), lost, direct)
    total = played.total()
    assert all(np.array_equal(found, part) for found, part in zip(total, played.expected(), strict=True))
    before = {one for step in ("card", "shares", "masked") for one in lost.get(step, ())}
    assert played.survivors == [one for one in range(number) if one not in before]


@pytest.mark.parametrize("step", STEPS)
def test_below_the_threshold_a_sum_is_void_and_no_share_leaves(step: str) -> None:
    played = Sum(terms(10), {step: [0, 3, 4, 8]})
    with pytest.raises(VoidSumError, match=r"6 of 10 clients .* needs 7: it is void, and nothing is revealed"):
        played.total()
    assert played.shares_left == 0 if step != "reveal" else played.shares_left == 6 * 10


def test_32_clients_with_a_tenth_lost() -> None:
    played = Sum(terms(32), {"shares": [4], "masked": [30], "reveal": [2]})
    assert all(np.array_equal(found, part) for found, part in zip(played.total(), played.expected(), strict=True))


@pytest.mark.parametrize("field", ["recipe", "model", "round", "phase", "nonce", "run"])
def test_clients_that_were_asked_for_different_things_share_nothing(field: str) -> None:
    asked = terms(4)
    honest = {number: client(number, asked) for number in (0, 2, 3)}
    cards = [one.card for one in honest.values()] + [client(1, terms(4, **{field: "other"})).card]
    for one in honest.values():
        with pytest.raises(SumRefusedError, match="client 1 was asked for something else"):
            one.share(cards)


@pytest.mark.parametrize("change", [{"cohort": (0, 1, 2, 3, 4), "threshold": 4}, {"threshold": 4}])
def test_cohort_and_threshold_are_signed_too(change: dict[str, object]) -> None:
    asked = terms(4)
    cards = [client(number, asked).card for number in (0, 2, 3)]
    with pytest.raises(SumRefusedError, match="asked for something else"):
        client(1, replace(asked, **change)).share([*cards, client(1, asked).card])  # type: ignore[arg-type]


def test_who_sends_a_group_that_too_few_send_is_left_out_where_enough_stay() -> None:
    """Owners refuse a sum in which a group comes from few clients, so that one client could stop all the others."""
    for number, kept in ((4, [0, 2, 3]), (3, [0, 1, 2])):
        asked = terms(number)
        server = ServerSum(asked, TestIdentity(-1).verify)
        for one in range(number):
            groups = ("encoder", "head") if one == 1 else ("encoder",)
            server.take_card(one, client(one, asked, groups=groups).card)
        assert [card.client for card in server.cards()] == kept


def test_other_tensors_strangers_and_changed_cards_are_refused() -> None:
    asked = terms(3)
    cards = [client(number, asked).card for number in (1, 2)]
    own = client(0, asked)
    with pytest.raises(SumRefusedError, match="client 2 sends other tensors"):
        own.share([own.card, cards[0], client(2, asked, template="other").card])
    own = client(0, asked)
    with pytest.raises(SumRefusedError, match="the server changed this client's card"):
        own.share([client(0, asked).card, *cards])
    stranger = ClientSum(0, asked, TestIdentity(0, known=2), "t", (), (), lambda names: vector(0))
    with pytest.raises(SumRefusedError, match=r"client 2 .* is not known here"):
        stranger.share([stranger.card, *cards])


def test_a_group_that_few_clients_send_is_hidden_by_nobody() -> None:
    """The others add zeros to it, so its sum would be the update of those few; also if the others leave later."""
    asked = terms(7)
    for senders, refused in ((2, "shares"), (3, "masked"), (4, "")):
        clients = {n: client(n, asked, groups=("encoder", "head") if n < senders else ("encoder",)) for n in range(7)}
        cards = [one.card for one in clients.values()]
        if refused == "shares":
            with pytest.raises(SumRefusedError, match="2 clients have something to send for group 'head'"):
                clients[6].share(cards)
            continue
        boxes = {n: one.share(cards)[0] for n, one in clients.items()}
        members = [n for n in range(7) if n != 0]
        own = {n: boxes[n][6] for n in members if n != 6}
        if refused == "masked":
            with pytest.raises(SumRefusedError, match="2 clients have something to send for group 'head'"):
                clients[6].masked(members, own)
            continue
        clients[6].masked(members, own)
        with pytest.raises(SumRefusedError, match="2 clients have something to send for group 'head'"):
            clients[6].alive([n for n in members if n != 1])


@pytest.mark.parametrize(
    ("cohort", "threshold", "min_cohort", "word"),
    [
        ((0, 1), 2, 3, "at least 3 different clients"),
        ((0, 1, 1), 3, 3, "at least 3 different clients"),
        ((1, 2, 3), 3, 3, "this one among them"),
        ((0, 1, 2, 3), 3, 5, "at least 5 different clients"),
        (tuple(range(10)), 6, 3, "at least 7 must stay, and the server wants 6"),
    ],
)
def test_small_cohorts_and_low_thresholds_are_refused(
    cohort: tuple[int, ...], threshold: int, min_cohort: int, word: str
) -> None:
    with pytest.raises(SumRefusedError, match=word):
        client(0, SumTerms({}, cohort, threshold), min_cohort=min_cohort)


@pytest.mark.parametrize("step", ["shares", "masked", "alive", "reveal"])
def test_no_step_is_answered_twice_and_none_after_that(step: str) -> None:
    played = Sum(terms(4))
    played.until(step)
    one = played.clients[0]
    calls: dict[str, Callable[[], object]] = {
        "shares": lambda: one.share(played.cards),
        "masked": lambda: one.masked(played.members, played.boxes[0]),
        "alive": lambda: one.alive(played.survivors),
        "reveal": lambda: one.reveal(played.server.signatures()),
    }
    with pytest.raises(SumRefusedError, match="comes once and in its order"):
        calls[step]()
    later: dict[str, Callable[[], object]] = {
        "masked": lambda: one.masked([0, 1, 2, 3], {}),
        "alive": lambda: one.alive([0, 1, 2, 3]),
        "reveal": lambda: one.reveal({}),
    }
    for name in STEPS[STEPS.index(step) + 1 :]:
        with pytest.raises(SumRefusedError, match="comes once and in its order"):
            later[name]()


def test_steps_cannot_be_left_out() -> None:
    played = Sum(terms(4))
    played.until("masked")
    with pytest.raises(SumRefusedError, match="in its order"):
        played.clients[0].reveal({})


def test_two_lists_of_survivors_reveal_nothing() -> None:
    """With both, a server would get a client's seed from one half and its mask key from the other."""
    played = Sum(terms(10))
    played.until("masked")
    first, second = list(range(10)), list(range(9))
    signatures = {}
    for number, one in played.clients.items():
        signatures[number] = one.alive(first if number in (0, 1, 2, 3, 9) else second)
    for number in range(9):
        with pytest.raises(SumRefusedError, match=r"[45] clients confirmed this list of survivors, and the sum needs 7"):
            played.clients[number].reveal(signatures)


def test_where_nobody_left_four_messages_are_enough_and_no_mask_key_leaves() -> None:
    played = Sum(terms(10), {"reveal": [3, 5]}, direct=True)
    total = played.total()
    assert all(np.array_equal(found, part) for found, part in zip(total, played.expected(), strict=True))
    assert played.survivors == list(range(10))
    assert played.shares_left == 8 * 10, "of eight clients, the shares of ten seeds"
    with pytest.raises(VoidSumError, match="6 of 10 clients revealed their shares, and this masked sum needs 7"):
        Sum(terms(10), {"reveal": [3, 5, 7, 8]}, direct=True).total()
    lossy = Sum(terms(10), {"masked": [3]})
    lossy.until("masked")
    assert not lossy.server.all_stayed


def test_without_signatures_a_client_reveals_the_sum_over_all_it_masked_with_and_no_other() -> None:
    for survivors in (list(range(9)), list(range(1, 10)), list(range(11)), [*range(9), 8], []):
        played = Sum(terms(10))
        played.until("masked")
        one = played.clients[0]
        with pytest.raises(SumRefusedError, match="without signatures a client reveals only the sum over all"):
            one.reveal_all(survivors)
        for again in (lambda one=one: one.reveal_all(list(range(10))), lambda one=one: one.alive(list(range(10)))):
            with pytest.raises(SumRefusedError, match="comes once and in its order"):
                again()


def test_a_client_goes_one_of_the_two_ways() -> None:
    played = Sum(terms(4))
    played.until("alive")
    with pytest.raises(SumRefusedError, match="comes once and in its order"):
        played.clients[0].reveal_all([0, 1, 2, 3])
    with pytest.raises(SumRefusedError, match="comes once and in its order"):
        played.clients[0].reveal(played.server.signatures())
    early = Sum(terms(4))
    early.until("shares")
    with pytest.raises(SumRefusedError, match="comes once and in its order"):
        early.clients[0].reveal_all([0, 1, 2, 3])


@attack("A8", "Tells some clients of a sum that all have stayed, and others that one has left", "the sum hides that one still")
@pytest.mark.parametrize("told_that_all_stayed", range(11))
def test_a_server_that_tells_some_that_all_stayed_and_others_that_one_left_gets_one_secret_of_it_at_most(
    told_that_all_stayed: int,
) -> None:
    """With the seed and the mask key of client 9 it could read that client's vector."""
    played = Sum(terms(10))
    played.until("masked")
    everyone, without = list(range(10)), list(range(9))
    first, others = everyone[:told_that_all_stayed], [number for number in without if number >= told_that_all_stayed]
    revealed = [played.clients[number].reveal_all(everyone) for number in first]
    signatures = {number: played.clients[number].alive(without) for number in others}
    for number in others:
        if len(signatures) >= played.asked.threshold:
            revealed.append(played.clients[number].reveal(signatures))
        else:
            with pytest.raises(SumRefusedError, match="clients confirmed this list of survivors"):
                played.clients[number].reveal(signatures)
    seeds, keys = (sum(9 in part for part in parts) for parts in zip(*((r.seeds, r.keys) for r in revealed), strict=True))
    assert min(seeds, keys) < played.asked.threshold
    assert seeds == told_that_all_stayed
    assert keys == (len(others) if len(others) >= 7 else 0)


def test_a_list_of_survivors_below_the_threshold_is_refused() -> None:
    played = Sum(terms(10))
    played.until("masked")
    with pytest.raises(SumRefusedError, match="6 clients are left, and this masked sum needs 7"):
        played.clients[0].alive(list(range(6)))


@pytest.mark.parametrize("attack", ["swapped", "flipped", "replayed", "missing"])
def test_shares_that_the_server_touched_are_not_read(attack: str) -> None:
    played, earlier = Sum(terms(4)), Sum(terms(4, nonce="2"))
    for one in (played, earlier):
        one.until("shares")
    boxes = played.server.boxes()
    flipped = bytes([boxes[0][1][0] ^ 1]) + boxes[0][1][1:]
    wrong = {"swapped": boxes[0][2], "flipped": flipped, "replayed": earlier.server.boxes()[0][1], "missing": b""}[attack]
    _, unreadable = played.clients[0].masked([0, 1, 2, 3], {**boxes[0], 1: wrong})
    assert unreadable == [1]
    played.clients[0].alive([0, 2, 3])
    signatures = {number: TestIdentity(number) for number in (0, 2, 3)}
    from unisono.privacy.secure_sum import alive_body

    body = alive_body(played.server._sid, [0, 2, 3])
    revealed = played.clients[0].reveal({number: one.sign(body) for number, one in signatures.items()})
    assert 1 not in revealed.keys


def test_one_wrong_share_is_found_and_left_out_and_two_void_the_sum() -> None:
    for liars in ([2], [2, 5]):
        played = Sum(terms(10))
        played.until("alive")
        signatures = played.server.signatures()
        for number, one in played.clients.items():
            revealed = one.reveal(signatures)
            if number in liars:
                revealed = Revealed({who: bytes(33) for who in revealed.seeds}, {})
            played.server.take_revealed(number, revealed)
        if len(liars) == 1:
            assert all(np.array_equal(a, b) for a, b in zip(played.server.total(), played.expected(), strict=True))
            continue
        with pytest.raises(VoidSumError, match="do not fit") as caught:
            played.server.total()
        assert caught.value.suspects


def test_a_client_that_shares_garbage_is_named() -> None:
    played = Sum(terms(4))
    played.until("card")
    cards = played.server.cards()
    for number, one in played.clients.items():
        boxes, commitment = one.share(cards)
        garbage = {who: bytes(82) for who in boxes}
        played.server.take_shares(number, garbage if number == 2 else boxes, commitment)
    boxes_of = played.server.boxes()
    for number, one in played.clients.items():
        words, unreadable = one.masked([0, 1, 2, 3], boxes_of[number])
        played.server.take_masked(number, words, LIKE, unreadable)
    assert played.server.blamed() == [2]


def test_wrong_messages_of_a_client_are_its_own_failure() -> None:
    played = Sum(terms(3))
    with pytest.raises(ValueError, match="not signed by its key for this request"):
        played.server.take_card(1, played.clients[0].card)
    with pytest.raises(ValueError, match="not signed"):
        played.server.take_card(0, client(0, terms(3, model="other")).card)
    played.until("shares")
    with pytest.raises(ValueError, match="no share for some client"):
        played.server.take_shares(0, {1: bytes(82)}, b"")
    with pytest.raises(ValueError, match="another length or other words"):
        played.server.take_masked(0, [LIKE[0], LIKE[1][:1]], LIKE, ())
    for values in ({}, {**played.clients[0].card.as_json(), "mask_key": "00"}, {"client": "x"}):
        with pytest.raises(ValueError, match="card of a masked sum is damaged"):
            Card.read(values)
    assert Card.read(played.clients[0].card.as_json()) == played.clients[0].card


def test_a_masked_vector_is_uniform() -> None:
    """Chi-square of its bytes: 255 degrees of freedom, five standard deviations."""
    size = 100_000
    asked = terms(3)
    clients = [
        ClientSum(n, asked, TestIdentity(n), "t", (), (), lambda names: [np.zeros(size, "<u4"), np.zeros(0, "<u8")])
        for n in range(3)
    ]
    cards = [one.card for one in clients]
    boxes = {number: one.share(cards)[0] for number, one in enumerate(clients)}
    words, _ = clients[0].masked([0, 1, 2], {1: boxes[1][0], 2: boxes[2][0]})
    counts = np.bincount(words[0].view(np.uint8), minlength=256)
    expected = 4 * size / 256
    assert abs(float(((counts - expected) ** 2 / expected).sum()) - 255) < 5 * (2 * 255) ** 0.5


def test_a_sum_asked_for_again_has_other_masks() -> None:
    """Keys are made for one sum, so the difference of two answers is no difference of updates."""
    sums = [Sum(terms(3)), Sum(terms(3))]
    sent = []
    for one in sums:
        one.until("shares")
        boxes = one.server.boxes()
        sent.append(one.clients[0].masked([0, 1, 2], boxes[0])[0][0])
    assert not np.array_equal(sent[0], sent[1])

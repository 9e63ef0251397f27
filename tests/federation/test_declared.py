"""Nothing leaves a client that the method did not declare, that does not fit, or that is not finite."""

import pytest
import torch

from unisono.core.errors import UserError
from unisono.core.payload import Form, Payload, Reduce, Reveals, Share, Update
from unisono.federation.declared import ConsentConfig, check_consent, check_update

SHARES = {"net": Share(Reduce.MEAN), "sums": Share(Reduce.MEAN), "centroids": Share(Reduce.STACK)}
RECEIVED = Payload({"net": {"w": torch.zeros(2, 3), "b": torch.zeros(3)}, "centroids": {"w": torch.zeros(4)}})


def good_groups() -> dict[str, dict[str, torch.Tensor]]:
    return {
        "net": {"w": torch.ones(2, 3), "b": torch.ones(3)},
        "sums": {"x": torch.ones(1)},
        "centroids": {"w": torch.ones(9, 2)},
    }


def check(groups: dict[str, dict[str, torch.Tensor]], **fields: object) -> None:
    check_update(Update(0, **{"weight": 1.0, "payload": Payload(groups), **fields}), SHARES, RECEIVED)  # type: ignore[arg-type]


def test_what_was_declared_and_fits_may_leave() -> None:
    check(good_groups(), metrics={"loss": 1.0})
    check({})
    check({"net": good_groups()["net"]}, weight=0.0)


def test_undeclared_groups_are_refused() -> None:
    with pytest.raises(ValueError, match=r"group 'data' is not among those declared for this phase \(net, sums, centroids\)"):
        check({**good_groups(), "data": {"x": torch.ones(1)}})
    with pytest.raises(ValueError, match="group 'data'"):
        check({"data": {}})


def test_scalars_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no scalars, got \['secret'\]"):
        check_update(Update(0, 1.0, Payload(good_groups(), {"secret": 5})), SHARES, RECEIVED)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w": torch.ones(3, 2)}, r"net/w has shape \(3, 2\), expected \(2, 3\)"),
        ({"w": torch.ones(6)}, r"net/w has shape \(6,\)"),
        ({"b": torch.ones(1)}, r"net/b has shape \(1,\), expected \(3,\)"),
        ({"extra": torch.ones(1)}, "net/extra is unknown"),
        ({"b": None}, "net/b is missing"),
    ],
)
def test_tensors_must_fit_what_was_received(change: dict[str, torch.Tensor | None], message: str) -> None:
    net = {name: tensor for name, tensor in {**good_groups()["net"], **change}.items() if tensor is not None}
    with pytest.raises(ValueError, match=message):
        check({"net": net})


def test_stacks_and_new_groups_may_have_any_shape() -> None:
    check({"centroids": {"w": torch.ones(1, 1), "other": torch.ones(7)}, "sums": {"anything": torch.ones(3, 3)}})


@pytest.mark.parametrize("group", ["net", "sums", "centroids"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_values_must_be_finite(group: str, value: float, dtype: torch.dtype) -> None:
    groups = {name: {key: tensor.to(dtype) for key, tensor in tensors.items()} for name, tensors in good_groups().items()}
    if dtype != torch.float32:
        with pytest.raises(ValueError, match=f"net/w has type {dtype}, expected torch.float32"):
            check(groups)
        groups["net"] = good_groups()["net"]
    check(groups)
    name = list(groups[group])[-1]
    groups[group][name].view(-1)[-1] = value
    with pytest.raises(ValueError, match=f"{group}/{name} holds a value that is not finite"):
        check(groups)


FORM = {"points": Form(("points", 2), most=3, low=-1.0, high=1.0), "held": Form(("net/b",)), "sizes": Form(("points",), most=3)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"points": torch.ones(2, 3)}, r"points has shape \(2, 3\), expected \('points', 2\) with at most 3"),
        ({"points": torch.ones(4, 2), "sizes": torch.ones(4)}, r"points has shape \(4, 2\)"),
        ({"points": torch.ones(2)}, r"points has shape \(2,\)"),
        ({"sizes": torch.ones(1)}, r"sizes has shape \(1,\)"),
        ({"held": torch.ones(2)}, r"held has shape \(2,\), expected \('net/b',\)$"),
        ({"points": torch.full((2, 2), 1.1)}, "points holds values beyond -1 to 1"),
        ({"points": torch.ones(2, 2).half()}, "points has type torch.float16"),
        ({"more": torch.ones(1)}, "sums/more is unknown"),
    ],
)
def test_a_form_holds_what_clients_received_nothing_like(change: dict[str, torch.Tensor], message: str) -> None:
    shares = {"sums": Share(Reduce.STACK, form=FORM)}
    good = {"points": torch.ones(2, 2), "held": torch.zeros(3), "sizes": torch.ones(2)}
    check_update(Update(0, 1.0, Payload({"sums": good})), shares, RECEIVED)
    with pytest.raises(ValueError, match=message):
        check_update(Update(0, 1.0, Payload({"sums": {**good, **change}})), shares, RECEIVED)


def test_infinities_that_would_cancel_are_found() -> None:
    groups = good_groups()
    groups["net"]["w"][0, 0], groups["net"]["w"][0, 1] = float("inf"), -float("inf")
    with pytest.raises(ValueError, match="net/w holds"):
        check(groups)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_values_that_would_overflow_in_a_sum_are_refused(dtype: torch.dtype) -> None:
    check({"sums": {"x": torch.full((1000,), 1e17, dtype=dtype), "y": torch.ones(1)}})
    with pytest.raises(ValueError, match="sums/x holds a value of"):
        check({"sums": {"x": torch.full((1000,), torch.finfo(dtype).max, dtype=dtype), "y": torch.ones(1)}})


def test_types_and_shapes_may_mix() -> None:
    check(
        {
            "sums": {
                "a": torch.ones(1, dtype=torch.float64),
                "b": torch.ones((), dtype=torch.bfloat16),
                "c": torch.ones(2, dtype=torch.int64),
                "d": torch.zeros(0),
                "e": torch.ones(2, dtype=torch.bool),
            }
        }
    )


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_weights_must_be_finite_and_not_negative(weight: float) -> None:
    with pytest.raises(ValueError, match="the weight is"):
        check(good_groups(), weight=weight)


def test_metrics_must_be_finite() -> None:
    with pytest.raises(ValueError, match="metric loss is nan"):
        check(good_groups(), metrics={"loss": float("nan")})


@pytest.mark.parametrize(
    ("reveals", "switch"),
    [(Reveals.REPRESENTATIONS, "allow_raw_representations"), (Reveals.DATA, "share_data")],
)
def test_revealing_shares_need_consent(reveals: Reveals, switch: str) -> None:
    shares = {"net": Share(Reduce.MEAN), "memory": Share(Reduce.STACK, reveals)}
    for given in (ConsentConfig(), ConsentConfig(**{name: name != switch for name in ConsentConfig.model_fields})):
        with pytest.raises(UserError, match=rf"sends {reveals.value} .*\(group 'memory'\); set consent\.{switch} = true"):
            check_consent(shares, given)
    check_consent(shares, ConsentConfig(**{switch: True}))


def test_parameters_and_statistics_need_none() -> None:
    check_consent({"a": Share(Reduce.MEAN), "b": Share(Reduce.STACK, Reveals.STATISTICS)}, ConsentConfig())

"""Which of nested Python functions is named around a call."""

import pytest

from meshscope.analyze.account.kernels.outermost import best_function

TORCH = "torch/_ops.py(1255): __call__"
MINE = "train/step.py(41): loss"
TENSOR = "<built-in method view of Tensor object at 0x7fdc681d0910>"
BOUND = "<built-in method all_reduce of pybind11_builtins.pybind11_detail_record object at 0x7f1>"


@pytest.mark.parametrize(
    ("names", "best"),
    [
        ([], ""),
        ([TENSOR, TORCH, MINE, "train/main.py(7): main"], MINE),
        ([TENSOR, TORCH], TORCH),
        ([TENSOR], "Tensor.view"),
        ([BOUND], "all_reduce"),
        (["<built-in function _disabled_torch_function_impl>"], "_disabled_torch_function_impl"),
        (["<frozen importlib._bootstrap>(1): f"], "<frozen importlib._bootstrap>(1): f"),
    ],
)
def test_the_line_of_the_user_is_named(names, best):
    """Fails when a call is placed in torch's own code, or at an address of memory, instead of the user's line."""
    assert best_function(names) == best

"""Operators by the device time of what they launched, and the speed of those that multiply."""

import json

import pytest
from tests.tables import trace_of
from tests.texts import texts

from meshscope.analyze.account.kernels.operators import operator_report
from meshscope.analyze.output.json import kernels_to_json
from meshscope.analyze.output.render import to_plain
from meshscope.analyze.output.text import kernels_document
from meshscope.analyze.read import import_trace

SMALL, LARGE = "bf16[1000,1000] bf16[1000,1000]", "bf16[2000,1000] bf16[1000,1000]"
NAMES = ["aten::mm", "aten::copy_", "gemm"]
MM, COPY, GEMM = range(len(NAMES))


def op(op_id, name_id, shapes=None, flops=None):
    """Return an operator of 10 ns."""
    row = {"op_id": op_id, "name_id": name_id, "start_ns": 10 * op_id, "dur_ns": 10}
    return row | {"shapes": shapes, "flops": flops}


def launched(op_id, start_ns, dur_ns):
    """Return a kernel that an operator launched."""
    return {"name_id": GEMM, "op_id": op_id, "start_ns": start_ns, "dur_ns": dur_ns, "launch_ns": 0}


def products(*ops, device="NVIDIA H100"):
    """Return a capture of these operators, the third kernel of which has none."""
    return trace_of(
        run={"device_name": device},
        step=[{"dur_ns": 100_000}],
        name=[{"name_id": at, "name": name} for at, name in enumerate(NAMES)],
        op=list(ops),
        kernel=[
            launched(0, 0, 4000),
            launched(0, 5000, 1000),
            launched(1, 10_000, 8000),
            launched(-1, 20_000, 500),
            launched(2, 30_000, 2500),
            launched(3, 40_000, 2500),
        ],
    )


def test_speed_of_each_shape_and_what_it_lost():
    """Fails when two shapes are mixed, or a second kernel of a product is left out of its time."""
    trace = products(
        op(0, MM, SMALL, 2e9), op(1, MM, LARGE, 4e9), op(2, COPY, "f32[8]"), op(3, MM, SMALL, 2e9)
    )
    rows = {(row["operator"], row["shapes"]): row for row in kernels_to_json(trace)["operators"]}
    small = rows["aten::mm", SMALL]
    assert (small["calls"], small["kernels"], small["total_ns"]) == (2, 3, 7500)
    assert small["flops_per_s"] == pytest.approx(4e9 / 7.5e-6)
    assert small["peak_frac"] == pytest.approx(4e9 / 7.5e-6 / 989e12)
    assert small["over_peak_ns"] == pytest.approx(7500 - 4e9 / 989e12 * 1e9, abs=1)
    assert rows["aten::mm", LARGE]["total_ns"] == 8000
    assert rows["aten::copy_", None]["flops_per_s"] is None
    assert (rows[None, None]["total_ns"], rows[None, None]["calls"]) == (500, 0)
    assert sum(row["total_ns"] for row in rows.values()) == 18_500


def test_products_without_shapes_and_other_precisions_are_not_judged():
    """Fails when a product of unknown size has a speed, or FP8 is held against the BF16 peak."""
    unknown = operator_report(products(op(0, MM), op(1, MM)))
    assert "record_shapes" in texts(unknown.limits)[0]
    assert unknown.operators["flops_per_s"].isna().all()
    low = operator_report(products(op(0, MM, SMALL.replace("bf16", "f8e4m3"), 2e9)))
    assert low.operators["flops_per_s"].notna().any()
    assert low.operators["peak_frac"].isna().all()
    assert "16-bit" in texts(low.limits)[0]
    strange = operator_report(products(op(0, MM, SMALL, 2e9), device="Some Chip"))
    assert strange.peak_flops is None
    assert "peak of the devices is unknown" in texts(strange.limits)[0]


def test_shapes_are_read_from_a_profiler_trace(tmp_path):
    """Fails when recorded shapes are lost on the way in, and no speed is ever told."""
    dims = {"Input Dims": [[7], [3, 5], [5, 7], [], []], "External id": 1}
    dims["Input type"] = ["c10::BFloat16", "c10::BFloat16", "c10::BFloat16", "Scalar", "Scalar"]
    heads = {
        "External id": 2,
        "Input Dims": [[1, 2, 8, 4]] * 3 + [[]] * 3,
        "Input type": ["c10::Half"] * 3 + ["Scalar"] * 3,
        "Concrete Inputs": ["", "", "", "0.", "True", "False"],
    }
    broken = {"External id": 3, "Input Dims": [[[1, 2], [3]], "x", [-1]], "Input type": ["TensorList", "float", "float"]}  # fmt: skip
    event = {"ph": "X", "cat": "cpu_op", "pid": 0, "tid": 1, "dur": 1}
    names = ["aten::addmm", "aten::_scaled_dot_product_flash_attention", "aten::cat", "aten::t"]
    args = [dims, heads, broken, {}]
    events = [
        event | {"name": name, "ts": at, "args": given}
        for at, (name, given) in enumerate(zip(names, args, strict=True))
    ]
    file = tmp_path / "rank0.json"
    file.write_text(json.dumps({"traceEvents": events}))
    ops = import_trace(file).frame("op")
    read = ops["shapes"].astype(object).where(ops["shapes"].notna(), None).tolist()
    assert read == ["bf16[7] bf16[3,5] bf16[5,7]", " ".join(["f16[1,2,8,4]"] * 3) + " causal", None, None]  # fmt: skip
    assert ops["flops"].tolist()[:2] == [210.0, 4 * 2 * 8 * 8 * 4 / 2]
    assert ops["flops"].isna().tolist()[2:] == [True, True]


@pytest.mark.traces
def test_a_real_trace_with_shapes(traces_dir):
    """Fails when the products of a real trace have another speed than their sizes and times give."""
    trace = import_trace(traces_dir / "tracelens/b200/eager_trace.json.gz")
    result = kernels_to_json(trace)
    wide = next(row for row in result["operators"] if str(row["shapes"]).startswith("bf16[640]"))
    assert wide["calls"] == 36
    assert wide["flops_per_s"] == pytest.approx(36 * 2 * 888 * 2880 * 640 / wide["total_ns"] * 1e9)
    assert wide["peak_frac"] == pytest.approx(wide["flops_per_s"] / 2250e12)
    assert "TFLOP/s" in to_plain(kernels_document(result))

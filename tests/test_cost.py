"""The pages about cost and about the GPU kernel say what was measured and computed."""

from math import prod

import pytest

import cost
import engines
import kernels


def test_the_pages_are_what_was_written():
    assert cost.PAGE.read_text("utf-8") == cost.page()
    page = cost.GPU_PAGE.read_text("utf-8")
    assert cost.with_table(page) == page
    assert page.count("| student-t:5 |") == 16


def test_the_compiled_kernel_fuses_nothing_and_spills_in_one_case():
    rows = cost.results("gpu_kernel.json")["rows"]
    assert {row["gpu"] for row in rows} == {gpu.kind for gpu in cost.GPUS}
    assert all(row["fma"] == 0 for row in rows)
    spilling = [tuple(r[name] for name in cost.CASE) for r in rows if r["local_bytes"]]
    assert spilling == [("student-t:5", "float64", "sm_90", False, False)]  # as docs/gpu.md says
    assert all(0 < row["registers"] <= 168 for row in rows)  # three programs on a processor


def test_a_time_is_what_it_is_computed_from():
    case = ("gaussian", "float32", "sm_90", True)
    rows = cost.results("gpu_kernel.json")["rows"]
    found = {tuple(r[name] for name in cost.CASE): r for r in rows}
    row, of_one_tap = (found[*case, one_tap] for one_tap in (False, True))
    memory, instructions = cost.gpu_seconds(cost.WAYS[0], "gaussian", cost.GPUS[1])
    assert memory == pytest.approx(8 / 3.35e12)
    count = 2 * row["per_draw"] + row["per_element"]
    assert instructions == pytest.approx(count / (132 * 64 * 1.98e9))
    one = cost.gpu_seconds(cost.WAYS[1], "gaussian", cost.GPUS[1])[1]  # as it is compiled for one
    assert one == pytest.approx(of_one_tap["per_element"] / (132 * 64 * 1.98e9))
    assert of_one_tap["per_element"] < row["per_draw"] + row["per_element"]


def test_times_of_cpus_are_those_that_were_measured():
    assert sum(map(prod, kernels.resnet18_shapes())) == cost.RESNET18
    found = cost.results("results.json")
    (forming,) = [r["seconds"] for r in found["forms"]["rows"]
                  if (r["part"], r["way"]) == ("resnet18", "forming gaussian")]  # fmt: skip
    assert cost.cpu_ns("forward", "gaussian") * 1e-9 * cost.RESNET18 == pytest.approx(forming)
    assert cost.cpu_ns("in the weights", "rademacher") < cost.cpu_ns("in the weights", "gaussian")
    assert cost.text(1e10 * cost.cpu_ns("forward", "gaussian") * 1e-9) in cost.page()


def test_instructions_cost_more_than_memory_but_where_the_page_says():
    assert cost.bound_by_memory()[0] in " ".join(cost.page().split())
    assert all(cell.startswith("rademacher, forward, float32") for cell in cost.bound_by_memory())
    for law in cost.LAWS:
        for way in cost.WAYS:
            for gpu in cost.GPUS:
                memory, instructions = cost.gpu_seconds(way, law, gpu)
                named = f"{law}, {way.name}, {gpu.name}" in cost.bound_by_memory()
                assert named == (memory >= instructions)
                least = min(
                    cost.gpu_seconds(way, other, gpu)[1] for other in ("uniform", "laplace")
                )
                assert law != "rademacher" or instructions < least


def test_times_are_written_with_two_digits():
    written = [cost.text(t) for t in (2.67e-2, 9.96e-5, 95.7, 2700, 1.5e-7, 0.999)]
    assert written == ["27 ms", "100 µs", "96 s", "45 min", "0.15 µs", "1 s"]
    assert [cost.power(n) for n in (10**7, 10**12)] == ["10⁷", "10¹²"]


def test_the_page_of_clusters_says_what_was_measured_of_ray():
    found = cost.results("results.json")["engines"]
    assert found["ratio"] == found["seconds"]["ray"] / found["seconds"]["processes"]
    assert found["ratio"] <= engines.TARGET
    assert min(found["seconds"].values()) >= engines.LEAST_SECONDS
    assert engines.sentence(found) in engines.PAGE.read_text("utf-8")

"""A split in the words of the frameworks."""

from __future__ import annotations

from meshscope.analyze.explain.balance.settings import framework_settings


def test_a_split_with_an_empty_last_stage():
    """Fails if a stage of the head alone is written as one with layers."""
    found = framework_settings((4, 5, 0), 3)
    assert found["megatron"] == '--pipeline-model-parallel-layout "Et*4|t*5|L"'
    assert found["torchtitan"].endswith('["norm", "output"]]')
    assert found["deepspeed"].startswith("parts = [0, 5, 10, 12]")
    assert found["meshscope"].endswith("layers_per_stage = [4, 5, 0]")


def test_even_middle_stages_have_the_short_form_too():
    """Fails if Megatron's numbers for the ends are not offered where they say the same."""
    found = framework_settings((3, 4, 4, 2), 4)["megatron"]
    assert "--decoder-first-pipeline-num-layers 3 --decoder-last-pipeline-num-layers 2" in found
    assert "decoder-first" not in framework_settings((3, 4, 5, 2), 4)["megatron"]
    assert "decoder-first" not in framework_settings((1, 1, 1, 1), 2)["megatron"]

from dataclasses import dataclass

import pytest

from bench.lib.cost import Work, decode_work, layer_weights, prefill_work, weight_bytes


@dataclass(frozen=True)
class Demo:
    """SmolLM2-135M."""

    layers: int = 30
    hidden: int = 576
    q_size: int = 576
    kv_size: int = 192
    intermediate: int = 1536
    vocab: int = 49152


def test_the_demo_model_has_106_million_weights_in_layers_and_28_in_the_head():
    assert 30 * layer_weights(Demo()) == 106_168_320
    weights = 106_168_320 + 28_311_552
    assert weight_bytes(Demo(), "float32") == 4 * weights
    assert weight_bytes(Demo(), "int8") == weights + weights / 32 * 4


def test_a_decode_step_reads_weights_once_and_every_context():
    one, two = (decode_work(Demo(), "float16", batch, 100, 2) for batch in (1, 2))
    kv_of_a_token = 2 * 192 * 30 * 2
    assert two.read_bytes - one.read_bytes == 100 * kv_of_a_token
    assert one.read_bytes == weight_bytes(Demo(), "float16") + 100 * kv_of_a_token
    assert two.flops == 2 * one.flops


def test_prefill_computes_a_token_as_decode_does_but_for_the_last_layer():
    prefill = prefill_work(Demo(), "float32", tokens=1, chunk=256)
    decode = decode_work(Demo(), "float32", batch=1, context=1, kv_itemsize=4)
    assert prefill.flops == decode.flops


def test_prefill_reads_the_weights_once_a_chunk():
    works = [prefill_work(Demo(), "float32", tokens, 256) for tokens in (256, 257, 600)]
    assert [w.read_bytes / weight_bytes(Demo(), "float32") for w in works] == [1, 2, 3]


def test_2048_tokens_of_prefill_are_434_and_145_gflop():
    """Head and the last layer's share are small beside it."""
    assert prefill_work(Demo(), "float32", 2048, 2048).flops == pytest.approx(579e9, rel=0.02)


def test_the_floor_is_the_slower_of_reading_and_computing():
    work = Work(read_bytes=100, flops=100)
    assert work.floor_s(bytes_per_s=10, flops_per_s=100) == 10
    assert work.floor_s(bytes_per_s=100, flops_per_s=10) == 10

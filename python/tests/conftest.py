"""Tests of the package. Those of PyTorch and JAX are skipped, visibly, where these are not installed."""

import pathlib

import pytest

FIXTURES = pathlib.Path(__file__).resolve().parents[2] / "fixtures"


@pytest.fixture
def fixtures() -> pathlib.Path:
    return FIXTURES


@pytest.fixture
def fx(fixtures: pathlib.Path) -> str:
    return (fixtures / "fx/fsdp_l2_ws8_bf16.backward.txt").read_text()


@pytest.fixture
def hlo(fixtures: pathlib.Path) -> str:
    return (fixtures / "hlo/ar_five_sizes.hlo").read_text()

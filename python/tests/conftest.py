"""Where fixtures are, and eight devices of the CPU for JAX, said before anything imports it."""

import os
import pathlib

import pytest

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()

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

"""Tests of the package. Those of PyTorch and JAX are skipped, visibly, where these are not installed."""

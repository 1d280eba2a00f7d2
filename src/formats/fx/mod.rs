//! PyTorch FX text, as `GraphModule.print_readable`, `TORCH_LOGS` and `gm.code` print it.

//! Texts and files of others: FX, torch.export, HLO, StableHLO; read, and written back.

mod edit_log;
mod export;
mod export_faults;
mod found_reading;
mod fx;
mod fx_edits;
mod fx_forms;
mod hlo;
mod hlo_faults;
mod stablehlo;
mod zip;

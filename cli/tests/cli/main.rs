//! The command line: the real binary, in folders of its own.

mod bad_input;
mod calibrate;
mod convert;
mod export;
mod help;
mod hlo;
mod json;
mod launch;
mod lower;
mod manners;
mod manuals;
mod options;
mod output;
mod own_plan;
mod pictures;
mod plan;
mod reading;
mod rewrite;
mod run;
mod run_files;
mod run_found;
mod run_nccl;
mod stablehlo;
mod support;
mod together;
mod verify;

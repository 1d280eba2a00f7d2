//! Prints the source of the fixed kernel, and before it a comment with its digest: what `scripts/fixed-ptx` compiles.

use bucketeer::codegen::cuda::{digest, fixed_module};

fn main() {
    let source = fixed_module();
    print!("// source {:016x}\n{source}", digest(&source));
}

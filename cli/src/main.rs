//! The program `bucketeer`: the command line, and nothing else.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Where that is cannot be told, only `launch` fails, and says so.
    let program = std::env::current_exe().map(|path| vec![path.into_os_string()]).unwrap_or_default();
    ExitCode::from(bucketeer_cli::main(std::env::args_os(), &program))
}

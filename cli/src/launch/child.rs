//! The side of a process that was launched.

use bucketeer_comm::rendezvous::LAUNCHER_VARIABLE;
use rustix::process::{Pid, getppid};

/// Makes a process that `launch` started end with its launcher, however that ends.
///
/// # Errors
/// The launcher has ended already, or is not this process's parent.
pub fn bind_to_launcher() -> Result<(), String> {
    let Some(value) = std::env::var_os(LAUNCHER_VARIABLE) else { return Ok(()) };
    let launcher = value.to_str().and_then(|text| text.parse().ok()).and_then(Pid::from_raw);
    let Some(launcher) = launcher else {
        return Err(format!("{LAUNCHER_VARIABLE}: `{}` is not a process id", value.to_string_lossy()));
    };
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|error| format!("this process cannot be bound to its launcher: {error}"))?;
    // It may have ended before we asked to be told.
    if getppid() != Some(launcher) {
        return Err(format!(
            "the launcher that {LAUNCHER_VARIABLE} names, process {}, is not this process's parent: it has ended, \
             or the variable is left from elsewhere",
            launcher.as_raw_nonzero()
        ));
    }
    Ok(())
}

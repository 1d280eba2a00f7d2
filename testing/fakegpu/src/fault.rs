//! Faults on request, as text: `CALL:N=WHAT`, several with `;` between.
//!
//! `CALL` is a function, `N` says which of its calls from now on, counted from 1, or `*` for all. `WHAT` is
//!
//! - a code: the call does nothing and answers it;
//! - `skip`: the call does nothing and answers 0, as if its caller had left it out: an event wait, say;
//! - `late:CODE`: the call is well, but what it enqueues fails with the code, which then stays for the context;
//!   Of a call of NCCL: the communicator fails, and the other ranks hear of it;
//! - `pending`: of a call of NCCL that enqueues: it never gets out of progress, as when it waits for another rank;
//! - `hang`: what it enqueues never ends, or, for a call that waits, the wait does not, until `fakegpu_reset`.

use std::cell::Cell;

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InjectedFault {
    Code(i32),
    Skip,
    Late(i32),
    Pending,
    Hang,
}

/// A fault that is asked for.
#[derive(Debug, PartialEq, Eq)]
pub struct Planned {
    call: String,
    /// Calls until it strikes, 1 for the next; none for all.
    left: Option<u64>,
    fault: InjectedFault,
}

/// Reads a list of faults.
pub fn parse(text: &str) -> Option<Vec<Planned>> {
    let parts = text.split(';').filter(|part| !part.trim().is_empty());
    parts
        .map(|part| {
            let (place, what) = part.trim().split_once('=')?;
            let (call, nth) = place.split_once(':')?;
            let left = if nth == "*" { None } else { Some(nth.parse().ok().filter(|nth| *nth > 0)?) };
            let fault = match what.split_once(':') {
                Some(("late", code)) => InjectedFault::Late(code.parse().ok()?),
                None if what == "hang" => InjectedFault::Hang,
                None if what == "skip" => InjectedFault::Skip,
                None if what == "pending" => InjectedFault::Pending,
                None => InjectedFault::Code(what.parse().ok()?),
                Some(_) => return None,
            };
            Some(Planned { call: call.to_owned(), left, fault })
        })
        .collect()
}

/// Counts a call, and takes the fault that strikes it.
pub fn strike(planned: &mut Vec<Planned>, call: &str) -> Option<InjectedFault> {
    let mut struck = None;
    planned.retain_mut(|fault| {
        if fault.call != call {
            return true;
        }
        let strikes = match &mut fault.left {
            None => true,
            Some(left) => {
                *left -= 1;
                *left == 0
            }
        };
        if strikes && struck.is_none() {
            struck = Some(fault.fault);
        }
        fault.left != Some(0)
    });
    struck
}

thread_local! {
    static OF_CALL: Cell<Option<InjectedFault>> = const { Cell::new(None) };
}

/// Sets the fault of the call that this thread is in.
pub fn set_of_call(fault: Option<InjectedFault>) {
    OF_CALL.set(fault);
}

/// Takes the fault of the call that this thread is in, for what it enqueues or waits for.
pub fn take_of_call() -> Option<InjectedFault> {
    OF_CALL.take()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_strikes_the_call_that_it_is_for_once() {
        let mut planned =
            parse("cuMemAlloc_v2:2=2; cuLaunchKernel:1=hang;cuEventRecord:1=late:719;cuStreamWaitEvent:1=skip;ncclSend:1=pending")
                .unwrap();
        assert_eq!(strike(&mut planned, "cuMemAlloc_v2"), None);
        assert_eq!(strike(&mut planned, "cuMemAlloc_v2"), Some(InjectedFault::Code(2)));
        assert_eq!(strike(&mut planned, "cuMemAlloc_v2"), None);
        assert_eq!(strike(&mut planned, "cuLaunchKernel"), Some(InjectedFault::Hang));
        assert_eq!(strike(&mut planned, "cuEventRecord"), Some(InjectedFault::Late(719)));
        assert_eq!(strike(&mut planned, "cuStreamWaitEvent"), Some(InjectedFault::Skip));
        assert_eq!(strike(&mut planned, "ncclSend"), Some(InjectedFault::Pending));
        assert!(planned.is_empty());
    }

    #[test]
    fn a_star_strikes_every_call() {
        let mut planned = parse("cuStreamCreate:*=999").unwrap();
        assert!((0..3).all(|_| strike(&mut planned, "cuStreamCreate") == Some(InjectedFault::Code(999))));
    }

    #[test]
    fn text_that_is_no_fault_is_refused() {
        for text in ["cuInit", "cuInit=3", "cuInit:0=3", "cuInit:1=soon", "cuInit:1=late:", "cuInit:x=1"] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(parse(" ; "), Some(Vec::new()));
    }
}

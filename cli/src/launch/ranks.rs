//! The processes of a launch: started, watched, ended.

use super::lines;
use bucketeer::ir::GlobalRank;
use bucketeer_comm::Fate;
use bucketeer_comm::store::StoreServer;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::SIGCHLD;
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Time for processes to end that were asked to.
const GRACE: Duration = Duration::from_secs(5);

/// Time for the others to end by themselves after one has failed: they name it, and write what they did last.
const REPORT_LIMIT: Duration = Duration::from_secs(3);

/// Time to read what is left of the output after all processes have ended: one that they started may hold it open.
const OUTPUT_LIMIT: Duration = Duration::from_secs(2);

/// Longest wait for a signal before the processes are looked at all the same.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

const STACK_BYTES: usize = 128 << 10;

/// How a launch ended.
pub enum Ending {
    /// All processes ended with 0, or with 1 where `rejected`.
    Done { rejected: bool },
    /// One failed, and how; `others` ran then.
    Failed { rank: u32, how: String, others: usize },
    /// The time was up while so many ran.
    Late { limit: Duration, running: usize },
    /// This process was told to stop.
    Stopped { signal: String },
}

pub struct Ranks {
    server: StoreServer,
    /// By rank; `None` once it has ended.
    children: Vec<Option<Child>>,
    running: usize,
    /// Held by all threads that move output, so that the receiver knows when they have ended.
    output: Option<Sender<()>>,
    output_ended: Receiver<()>,
}

impl Ranks {
    pub fn new(server: StoreServer) -> Self {
        let (output, output_ended) = channel();
        Self { server, children: Vec::new(), running: 0, output: Some(output), output_ended }
    }

    /// Starts the next rank's process. It has to be called from the thread that lives longest: on Linux a process ends
    /// with the thread that started it.
    pub fn start(&mut self, rank: u32, command: &mut Command) -> io::Result<()> {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        self.children.push(Some(child));
        self.running += 1;
        if let Some(stdout) = stdout {
            self.move_output(stdout, (rank != 0).then(|| prefix(rank)))?;
        }
        if let Some(stderr) = stderr {
            self.move_output(stderr, Some(prefix(rank)))?;
        }
        Ok(())
    }

    fn move_output(&self, from: impl Read + Send + 'static, prefix: Option<String>) -> io::Result<()> {
        let alive = self.output.clone();
        let moving = move || {
            match prefix {
                None => lines::pass_on(from, io::stdout()),
                Some(prefix) => lines::with_prefix(from, io::stderr(), &prefix),
            }
            drop(alive);
        };
        thread::Builder::new().stack_size(STACK_BYTES).spawn(moving).map(drop)
    }

    /// Watches the processes until all have ended. `events` are the signals that this process gets.
    pub fn watch(&mut self, events: &Receiver<i32>, limit: Option<Duration>) -> Ending {
        let start = Instant::now();
        let mut rejected = false;
        loop {
            let mut failed: Option<(u32, ExitStatus)> = None;
            for (rank, status) in self.sweep() {
                match status.code() {
                    Some(0) => {}
                    Some(1) => rejected = true,
                    // Of several at a time, one that got a signal did not merely follow another.
                    code => {
                        if failed.is_none_or(|(_, first)| first.code().is_some() && code.is_none()) {
                            failed = Some((rank, status));
                        }
                    }
                }
            }
            if let Some((rank, status)) = failed {
                self.let_report(events);
                let others = self.running;
                self.end(events);
                return Ending::Failed { rank, how: how(status), others };
            }
            if self.running == 0 {
                return Ending::Done { rejected };
            }
            let left = limit.map_or(LONGEST_WAIT, |limit| limit.saturating_sub(start.elapsed()));
            if let Some(limit) = limit.filter(|_| left.is_zero()) {
                let running = self.running;
                self.end(events);
                return Ending::Late { limit, running };
            }
            match events.recv_timeout(left.min(LONGEST_WAIT)) {
                Ok(SIGCHLD) | Err(RecvTimeoutError::Timeout) => {}
                Ok(signal) => {
                    self.end(events);
                    return Ending::Stopped { signal: signal_name(signal) };
                }
                // Nobody tells any more; looking now and then does, too.
                Err(RecvTimeoutError::Disconnected) => thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// Writes out what the processes printed last.
    pub fn finish(&mut self) {
        drop(self.output.take());
        let _ = self.output_ended.recv_timeout(OUTPUT_LIMIT);
    }

    /// Who was not let in by the store.
    pub fn refused(&self) -> Vec<String> {
        self.server.refused()
    }

    /// Those that have ended since the last time, by rank.
    fn sweep(&mut self) -> Vec<(u32, ExitStatus)> {
        let mut ended = Vec::new();
        for (rank, place) in (0..).zip(&mut self.children) {
            // What cannot be waited for is not ours any more, and as good as lost.
            let status = match place.as_mut().map(Child::try_wait) {
                None | Some(Ok(None)) => continue,
                Some(Ok(Some(status))) => status,
                Some(Err(_)) => ExitStatus::from_raw(2 << 8),
            };
            *place = None;
            self.running -= 1;
            self.server.ended(GlobalRank(rank), Fate::Lost);
            ended.push((rank, status));
        }
        ended
    }

    /// Leaves the others a time to find out that one is gone. A signal to this process ends it.
    fn let_report(&mut self, events: &Receiver<i32>) {
        let start = Instant::now();
        loop {
            self.sweep();
            let left = REPORT_LIMIT.saturating_sub(start.elapsed());
            if self.running == 0 || left.is_zero() {
                return;
            }
            match events.recv_timeout(left) {
                Ok(SIGCHLD) | Err(RecvTimeoutError::Timeout) => {}
                Ok(_) => return,
                Err(RecvTimeoutError::Disconnected) => thread::sleep(left.min(Duration::from_millis(50))),
            }
        }
    }

    /// Ends all that run: asks them, and after a time, or when this process is told to stop again, makes them.
    fn end(&mut self, events: &Receiver<i32>) {
        for child in self.children.iter().flatten() {
            // It has not been waited for, so the id is its own.
            let _ = i32::try_from(child.id()).ok().and_then(Pid::from_raw).map(|pid| kill_process(pid, Signal::TERM));
        }
        let start = Instant::now();
        loop {
            self.sweep();
            let left = GRACE.saturating_sub(start.elapsed());
            if self.running == 0 || left.is_zero() {
                break;
            }
            match events.recv_timeout(left) {
                Ok(SIGCHLD) | Err(RecvTimeoutError::Timeout) => {}
                Ok(_) => break,
                Err(RecvTimeoutError::Disconnected) => thread::sleep(left.min(Duration::from_millis(50))),
            }
        }
        self.kill();
    }

    fn kill(&mut self) {
        for child in self.children.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.children.clear();
        self.running = 0;
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.kill();
    }
}

fn prefix(rank: u32) -> String {
    format!("[rank {rank}] ")
}

fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("ended by {}", signal_name(signal)),
        (None, None) => status.to_string(),
    }
}

fn signal_name(signal: i32) -> String {
    let name = signal_hook::low_level::signal_name(signal);
    name.map_or_else(|| format!("signal {signal}"), str::to_owned)
}

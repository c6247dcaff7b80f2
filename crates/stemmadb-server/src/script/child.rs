//! The server's side of one worker: a child process that handles one request at a time and is killed when it does not
//! respond.

use std::io::{self, BufReader};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::wire::{self, Frame, ReceivedFrame};
use super::{ScriptError, ScriptLimits, ThrownError, WorkerCommand};

/// The time added to a call's time limit before a worker is killed, so that it can usually report the timeout itself.
const GRACE: Duration = Duration::from_millis(1500);

/// A worker.
pub(super) struct WorkerProcess {
    process: Arc<Mutex<Child>>,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    watchdog: Arc<Watchdog>,
    /// The open context.
    pub(super) context: Option<Arc<str>>,
    time: Duration,
}

/// The result of a call: JSON, or the exception that the function threw.
pub(super) type CallResult = Result<String, ThrownError>;

impl WorkerProcess {
    pub(super) fn start(
        command_line: &WorkerCommand,
        limits: ScriptLimits,
        watchdog: &Arc<Watchdog>,
    ) -> Result<Self, ScriptError> {
        let mut command = Command::new(&command_line.program);
        command.args(&command_line.arguments);
        command.arg(limits.time.as_millis().to_string()).arg(limits.memory_bytes.to_string());
        command.env_clear().current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process =
            command.spawn().map_err(|error| ScriptError::Crashed(format!("can't be started: {error}")))?;
        let pipes = (process.stdin.take(), process.stdout.take());
        let (Some(input), Some(output)) = pipes else {
            return Err(ScriptError::Crashed("has no pipes".to_owned()));
        };
        Ok(WorkerProcess {
            process: Arc::new(Mutex::new(process)),
            input,
            output: BufReader::with_capacity(64 << 10, output),
            watchdog: watchdog.clone(),
            context: None,
            time: limits.time + GRACE,
        })
    }

    /// Opens a new context with the functions of `design`, a design document as JSON.
    pub(super) fn open(&mut self, context: &Arc<str>, design: &str) -> Result<(), ScriptError> {
        self.context = None;
        self.request(Frame::new(wire::OPEN).text(design), &mut |_| Ok(()), &mut |_| ())?;
        self.context = Some(context.clone());
        Ok(())
    }

    /// Sends a request and reads its results until the end frame.
    pub(super) fn request(
        &mut self,
        frame: Frame,
        on_result: &mut dyn FnMut(CallResult) -> Result<(), ScriptError>,
        log: &mut dyn FnMut(&str),
    ) -> Result<(), ScriptError> {
        if frame.byte_count() > wire::FRAME_BYTES_MAX {
            return Err(ScriptError::TooLarge);
        }
        let watch = self.watchdog.watch(&self.process, self.time);
        let outcome = self.exchange(frame, on_result, log, &watch);
        let was_killed = watch.end();
        match outcome {
            Ok(done) => done,
            Err(_) if was_killed => Err(ScriptError::Timeout(self.time - GRACE)),
            Err(error) => Err(ScriptError::Crashed(error.to_string())),
        }
    }

    fn exchange(
        &mut self,
        frame: Frame,
        on_result: &mut dyn FnMut(CallResult) -> Result<(), ScriptError>,
        log: &mut dyn FnMut(&str),
        watch: &Watch,
    ) -> io::Result<Result<(), ScriptError>> {
        frame.send(&mut self.input)?;
        let mut done = Ok(());
        loop {
            let Some(mut received) = ReceivedFrame::read(&mut self.output)? else {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the worker ended"));
            };
            watch.renew(self.time);
            match received.kind {
                wire::RESULTS => {
                    for text in received.rest()? {
                        if done.is_ok() {
                            done = on_result(decode(text)?);
                        }
                    }
                }
                wire::LOG => log(received.text()?),
                wire::UNCALLABLE => done = Err(ScriptError::Uncallable(thrown(received.text()?)?)),
                wire::FATAL => {
                    let is_timeout = received.text()? == super::engine::TOO_LONG;
                    let limit = self.time - GRACE;
                    return Ok(Err(if is_timeout { ScriptError::Timeout(limit) } else { ScriptError::TooLarge }));
                }
                wire::END => return Ok(done),
                _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "an unknown frame")),
            }
        }
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let mut process = self.process.lock();
        // Reap the process even if it has ended by itself.
        process.kill().ok();
        process.wait().ok();
    }
}

fn decode(text: &str) -> io::Result<CallResult> {
    match text.split_at_checked(1) {
        Some(("+", result)) => Ok(Ok(result.to_owned())),
        Some(("-", why)) => Ok(Err(thrown(why)?)),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "a malformed result")),
    }
}

fn thrown(json: &str) -> io::Result<ThrownError> {
    Ok(serde_json::from_str(json)?)
}

/// Kills workers that do not respond in time. One thread watches all of them, and sleeps while no worker is busy.
#[derive(Default)]
pub(super) struct Watchdog {
    watched: Mutex<Vec<Arc<Watched>>>,
    changed: Condvar,
}

struct Watched {
    process: Arc<Mutex<Child>>,
    state: Mutex<WatchState>,
}

struct WatchState {
    deadline: Instant,
    was_killed: bool,
}

/// A watched request.
struct Watch {
    watched: Arc<Watched>,
    watchdog: Arc<Watchdog>,
}

/// The interval of checks while workers are busy.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

impl Watchdog {
    pub(super) fn start() -> io::Result<Arc<Self>> {
        let watchdog = Arc::new(Watchdog::default());
        let watching = Arc::downgrade(&watchdog);
        let check = move || {
            while let Some(watchdog) = watching.upgrade() {
                watchdog.check();
            }
        };
        std::thread::Builder::new().name("stemma-script-watch".to_owned()).spawn(check)?;
        Ok(watchdog)
    }

    fn check(&self) {
        let mut watched = self.watched.lock();
        if watched.is_empty() {
            self.changed.wait_for(&mut watched, Duration::from_secs(1));
        }
        let now = Instant::now();
        for one in &*watched {
            let mut state = one.state.lock();
            if now >= state.deadline && !state.was_killed {
                state.was_killed = true;
                // The reader of its output sees the end of the stream.
                one.process.lock().kill().ok();
            }
        }
        if !watched.is_empty() {
            drop(watched);
            std::thread::sleep(CHECK_INTERVAL);
        }
    }

    fn watch(self: &Arc<Self>, process: &Arc<Mutex<Child>>, time: Duration) -> Watch {
        let state = WatchState { deadline: Instant::now() + time, was_killed: false };
        let watched = Arc::new(Watched { process: process.clone(), state: Mutex::new(state) });
        self.watched.lock().push(watched.clone());
        self.changed.notify_one();
        Watch { watched, watchdog: self.clone() }
    }
}

impl Watch {
    fn renew(&self, time: Duration) {
        self.watched.state.lock().deadline = Instant::now() + time;
    }

    /// Stops watching. Returns whether the worker was killed.
    fn end(self) -> bool {
        self.watchdog.watched.lock().retain(|one| !Arc::ptr_eq(one, &self.watched));
        self.watched.state.lock().was_killed
    }
}

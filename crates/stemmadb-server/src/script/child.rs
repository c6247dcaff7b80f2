//! The server's side of one worker: a child process, asked one thing at a time, and ended when it does not answer.

use std::io::{self, BufReader};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::wire::{self, Frame, Received};
use super::{Bounded, Launch, ScriptError, Thrown};

/// What a worker takes to be ended, beyond what its functions may take.
const GRACE: Duration = Duration::from_millis(1500);

/// A worker.
pub(super) struct Worker {
    process: Arc<Mutex<Child>>,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    watchdog: Arc<Watchdog>,
    /// The context that it has open.
    pub(super) context: Option<Arc<str>>,
    time: Duration,
}

/// What a call's function came to: a result as JSON, or what it threw.
pub(super) type Answer = Result<String, Thrown>;

impl Worker {
    pub(super) fn start(launch: &Launch, bounds: Bounded, watchdog: &Arc<Watchdog>) -> Result<Self, ScriptError> {
        let mut command = Command::new(&launch.program);
        command.args(&launch.arguments);
        command.arg(bounds.time.as_millis().to_string()).arg(bounds.memory_bytes.to_string());
        command.env_clear().current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process =
            command.spawn().map_err(|error| ScriptError::Crashed(format!("can't be started: {error}")))?;
        let pipes = (process.stdin.take(), process.stdout.take());
        let (Some(input), Some(output)) = pipes else {
            return Err(ScriptError::Crashed("has no pipes".to_owned()));
        };
        Ok(Worker {
            process: Arc::new(Mutex::new(process)),
            input,
            output: BufReader::with_capacity(64 << 10, output),
            watchdog: watchdog.clone(),
            context: None,
            time: bounds.time + GRACE,
        })
    }

    /// Gives it a new context, with the functions of `design`, a design document as JSON.
    pub(super) fn open(&mut self, context: &Arc<str>, design: &str) -> Result<(), ScriptError> {
        self.context = None;
        self.ask(Frame::new(wire::OPEN).text(design), &mut |_| Ok(()), &mut |_| ())?;
        self.context = Some(context.clone());
        Ok(())
    }

    /// Sends a request and reads until its end.
    pub(super) fn ask(
        &mut self,
        request: Frame,
        answer: &mut dyn FnMut(Answer) -> Result<(), ScriptError>,
        log: &mut dyn FnMut(&str),
    ) -> Result<(), ScriptError> {
        if request.byte_count() > wire::FRAME_BYTES_MAX {
            return Err(ScriptError::TooLarge);
        }
        let watch = self.watchdog.watch(&self.process, self.time);
        let asked = self.exchange(request, answer, log, &watch);
        let was_ended = watch.end();
        match asked {
            Ok(done) => done,
            Err(_) if was_ended => Err(ScriptError::Timeout(self.time - GRACE)),
            Err(error) => Err(ScriptError::Crashed(error.to_string())),
        }
    }

    fn exchange(
        &mut self,
        request: Frame,
        answer: &mut dyn FnMut(Answer) -> Result<(), ScriptError>,
        log: &mut dyn FnMut(&str),
        watch: &Watch,
    ) -> io::Result<Result<(), ScriptError>> {
        request.send(&mut self.input)?;
        let mut done = Ok(());
        loop {
            let Some(mut frame) = Received::read(&mut self.output)? else {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended"));
            };
            watch.renew(self.time);
            match frame.kind {
                wire::ANSWERS => {
                    for text in frame.rest()? {
                        if done.is_ok() {
                            done = answer(decode(text)?);
                        }
                    }
                }
                wire::LOG => log(frame.text()?),
                wire::UNCALLABLE => done = Err(ScriptError::Uncallable(thrown(frame.text()?)?)),
                wire::FATAL => {
                    let is_timeout = frame.text()? == super::engine::TOO_LONG;
                    let bound = self.time - GRACE;
                    return Ok(Err(if is_timeout { ScriptError::Timeout(bound) } else { ScriptError::TooLarge }));
                }
                wire::END => return Ok(done),
                _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "an unknown frame")),
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let mut process = self.process.lock();
        // It may have ended by itself; either way it is waited for, so that nothing is left of it.
        process.kill().ok();
        process.wait().ok();
    }
}

fn decode(text: &str) -> io::Result<Answer> {
    match text.split_at_checked(1) {
        Some(("+", result)) => Ok(Ok(result.to_owned())),
        Some(("-", why)) => Ok(Err(thrown(why)?)),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "a malformed answer")),
    }
}

fn thrown(json: &str) -> io::Result<Thrown> {
    Ok(serde_json::from_str(json)?)
}

/// Ends workers that do not answer in time: one thread for all of them, which sleeps while none is asked.
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
    was_ended: bool,
}

/// A worker's request that is watched.
struct Watch {
    watched: Arc<Watched>,
    watchdog: Arc<Watchdog>,
}

/// How long the thread sleeps at most while there is something to watch.
const LOOK_EVERY: Duration = Duration::from_millis(100);

impl Watchdog {
    pub(super) fn start() -> io::Result<Arc<Self>> {
        let watchdog = Arc::new(Watchdog::default());
        let watching = Arc::downgrade(&watchdog);
        let look = move || {
            while let Some(watchdog) = watching.upgrade() {
                watchdog.look();
            }
        };
        std::thread::Builder::new().name("stemma-script-watch".to_owned()).spawn(look)?;
        Ok(watchdog)
    }

    fn look(&self) {
        let mut watched = self.watched.lock();
        if watched.is_empty() {
            self.changed.wait_for(&mut watched, Duration::from_secs(1));
        }
        let now = Instant::now();
        for one in &*watched {
            let mut state = one.state.lock();
            if now >= state.deadline && !state.was_ended {
                state.was_ended = true;
                // Whoever reads from it sees its end.
                one.process.lock().kill().ok();
            }
        }
        if !watched.is_empty() {
            drop(watched);
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn watch(self: &Arc<Self>, process: &Arc<Mutex<Child>>, time: Duration) -> Watch {
        let state = WatchState { deadline: Instant::now() + time, was_ended: false };
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

    /// Ends watching; tells whether the worker was ended.
    fn end(self) -> bool {
        self.watchdog.watched.lock().retain(|one| !Arc::ptr_eq(one, &self.watched));
        self.watched.state.lock().was_ended
    }
}

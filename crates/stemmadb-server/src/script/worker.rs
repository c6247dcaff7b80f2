//! The worker process: runs functions of design documents, without any other capabilities.

use std::io::{self, BufReader, Stdin, Stdout, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit};

use super::engine::{CallLimits, Engine, EngineFailure};
use super::wire::{self, Frame, ReceivedFrame};

/// Memory of the process in addition to the engine's: the program, stacks, and frames.
const OTHER_BYTES: u64 = 256 << 20;

/// The limit of processor time per request, in seconds, after which the kernel kills the process.
const PROCESSOR_SECONDS: u64 = 60;

/// The interval after which pending results are sent, so that the server sees progress.
const SEND_INTERVAL: Duration = Duration::from_millis(250);

/// The size of pending results, in bytes, at which they are sent.
const SEND_BYTES: usize = 1 << 20;

/// Runs a worker: handles requests from standard input until its end. `arguments` are those after the hidden
/// subcommand.
pub fn run(arguments: &[String]) -> ExitCode {
    let number = |at: usize| arguments.get(at).and_then(|text| text.parse::<u64>().ok());
    let (Some(milliseconds), Some(memory_bytes)) = (number(0), number(1)) else {
        return ExitCode::from(2);
    };
    let limits = CallLimits { time: Duration::from_millis(milliseconds), memory_bytes: memory_bytes as usize };
    if confine(memory_bytes).is_err() {
        return ExitCode::from(71);
    }
    let (mut input, mut output) = (BufReader::new(io::stdin()), io::stdout());
    match serve(&mut input, &mut output, limits) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Drops the privileges and resources that a worker does not need.
fn confine(memory_bytes: u64) -> rustix::io::Result<()> {
    let limits =
        [(Resource::As, memory_bytes + OTHER_BYTES), (Resource::Core, 0), (Resource::Fsize, 0), (Resource::Nofile, 3)];
    for (resource, limit) in limits {
        rustix::process::setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) })?;
    }
    #[cfg(target_os = "linux")]
    rustix::thread::set_no_new_privs(true)?;
    Ok(())
}

/// Sets the limit of processor time for the next request.
fn set_processor_limit(used: Duration) -> io::Result<()> {
    let current = Some(used.as_secs() + PROCESSOR_SECONDS);
    Ok(rustix::process::setrlimit(Resource::Cpu, Rlimit { current, maximum: None })?)
}

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::from_secs(time.tv_sec.unsigned_abs())
}

fn serve(input: &mut BufReader<Stdin>, output: &mut Stdout, limits: CallLimits) -> io::Result<()> {
    let mut engine = None;
    while let Some(mut request) = ReceivedFrame::read(input)? {
        set_processor_limit(processor_time())?;
        let done = match request.kind {
            wire::OPEN => {
                // Drop the old engine first, so that there are never two.
                drop(engine.take());
                Engine::new(request.text()?, limits).map(|opened| engine = Some(opened))
            }
            wire::CALL => match &engine {
                Some(engine) => call(engine, &mut request, output)?,
                None => return Err(io::Error::other("no context is open")),
            },
            _ => return Err(io::Error::other("an unknown frame")),
        };
        match done {
            Ok(()) => Frame::new(wire::END).send(output)?,
            Err(EngineFailure::Uncallable(why)) => {
                Frame::new(wire::UNCALLABLE).text(&why).send(output)?;
                Frame::new(wire::END).send(output)?;
            }
            Err(EngineFailure::Fatal(why)) => return Frame::new(wire::FATAL).text(why).send(output),
        }
    }
    Ok(())
}

fn call(engine: &Engine, request: &mut ReceivedFrame, output: &mut Stdout) -> io::Result<Result<(), EngineFailure>> {
    let (kind, path) = (request.text()?.to_owned(), request.text()?.to_owned());
    let argument_count = request.number()?;
    let arguments = request.rest()?;
    let mut calls = arguments.chunks(argument_count.max(1));
    let mut results = PendingResults { frame: Frame::new(wire::RESULTS), since: Instant::now(), output, failed: None };
    let done = engine.call(&kind, &path, &mut || calls.next().map(<[&str]>::to_vec), &mut |text| results.push(text));
    let PendingResults { frame, output, failed, .. } = results;
    failed.map_or(Ok(()), Err)?;
    frame.send(output)?;
    if let Ok(lines) = &done {
        lines.iter().try_for_each(|line| Frame::new(wire::LOG).text(line).send(output))?;
    }
    Ok(done.map(|_| ()))
}

/// Pending results.
struct PendingResults<'a> {
    frame: Frame,
    since: Instant,
    output: &'a mut Stdout,
    failed: Option<io::Error>,
}

impl PendingResults<'_> {
    fn push(&mut self, text: &str) {
        self.frame.push(text);
        if self.frame.byte_count() >= SEND_BYTES || self.since.elapsed() >= SEND_INTERVAL {
            let full = std::mem::replace(&mut self.frame, Frame::new(wire::RESULTS));
            self.since = Instant::now();
            if let Err(error) = full.send(&mut *self.output).and_then(|()| self.output.flush()) {
                self.failed.get_or_insert(error);
            }
        }
    }
}

//! The worker's side: a process that runs functions of design documents, and can do nothing else.

use std::io::{self, BufReader, Stdin, Stdout, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit};

use super::engine::{Bounds, Engine, Failure};
use super::wire::{self, Frame, Received};

/// Memory of the process besides that of the engine: the program itself, stacks, and the frames that it holds.
const OTHER_BYTES: u64 = 256 << 20;

/// Processor seconds that what is asked at once may take beyond all that was used before; the kernel ends the process then.
const PROCESSOR_SECONDS: u64 = 60;

/// Answers are sent on after so long, so that whoever waits sees that it goes on.
const ANSWER_EVERY: Duration = Duration::from_millis(250);

/// Answers are sent on from so many bytes.
const ANSWER_BYTES: usize = 1 << 20;

/// Runs functions of design documents as they are asked for on standard input, until its end. This is what the hidden verb
/// does; `arguments` are those after it.
pub fn run(arguments: &[String]) -> ExitCode {
    let number = |at: usize| arguments.get(at).and_then(|text| text.parse::<u64>().ok());
    let (Some(milliseconds), Some(memory_bytes)) = (number(0), number(1)) else {
        return ExitCode::from(2);
    };
    let bounds = Bounds { time: Duration::from_millis(milliseconds), memory_bytes: memory_bytes as usize };
    if confine(memory_bytes).is_err() {
        return ExitCode::from(71);
    }
    let (mut input, mut output) = (BufReader::new(io::stdin()), io::stdout());
    match serve(&mut input, &mut output, bounds) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Gives up what a worker needs not.
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

/// Gives what is asked next so much time of a processor.
fn wind_up(used: Duration) -> io::Result<()> {
    let current = Some(used.as_secs() + PROCESSOR_SECONDS);
    Ok(rustix::process::setrlimit(Resource::Cpu, Rlimit { current, maximum: None })?)
}

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::from_secs(time.tv_sec.unsigned_abs())
}

fn serve(input: &mut BufReader<Stdin>, output: &mut Stdout, bounds: Bounds) -> io::Result<()> {
    let mut engine = None;
    while let Some(mut asked) = Received::read(input)? {
        wind_up(processor_time())?;
        let done = match asked.kind {
            wire::OPEN => {
                // The old one first, so that there are never two.
                drop(engine.take());
                Engine::new(asked.text()?, bounds).map(|opened| engine = Some(opened))
            }
            wire::CALL => match &engine {
                Some(engine) => call(engine, &mut asked, output)?,
                None => return Err(io::Error::other("no context is open")),
            },
            _ => return Err(io::Error::other("an unknown frame")),
        };
        match done {
            Ok(()) => Frame::new(wire::END).send(output)?,
            Err(Failure::Uncallable(why)) => {
                Frame::new(wire::UNCALLABLE).text(&why).send(output)?;
                Frame::new(wire::END).send(output)?;
            }
            Err(Failure::Fatal(why)) => return Frame::new(wire::FATAL).text(why).send(output),
        }
    }
    Ok(())
}

fn call(engine: &Engine, asked: &mut Received, output: &mut Stdout) -> io::Result<Result<(), Failure>> {
    let (verb, path) = (asked.text()?.to_owned(), asked.text()?.to_owned());
    let argument_count = asked.number()?;
    let arguments = asked.rest()?;
    let mut calls = arguments.chunks(argument_count.max(1));
    let mut answers = Answers { frame: Frame::new(wire::ANSWERS), since: Instant::now(), output, failed: None };
    let done = engine.call(&verb, &path, &mut || calls.next().map(<[&str]>::to_vec), &mut |text| answers.push(text));
    let Answers { frame, output, failed, .. } = answers;
    failed.map_or(Ok(()), Err)?;
    frame.send(output)?;
    if let Ok(lines) = &done {
        lines.iter().try_for_each(|line| Frame::new(wire::LOG).text(line).send(output))?;
    }
    Ok(done.map(|_| ()))
}

/// Answers on their way.
struct Answers<'a> {
    frame: Frame,
    since: Instant,
    output: &'a mut Stdout,
    failed: Option<io::Error>,
}

impl Answers<'_> {
    fn push(&mut self, text: &str) {
        self.frame.push(text);
        if self.frame.byte_count() >= ANSWER_BYTES || self.since.elapsed() >= ANSWER_EVERY {
            let full = std::mem::replace(&mut self.frame, Frame::new(wire::ANSWERS));
            self.since = Instant::now();
            if let Err(error) = full.send(&mut *self.output).and_then(|()| self.output.flush()) {
                self.failed.get_or_insert(error);
            }
        }
    }
}

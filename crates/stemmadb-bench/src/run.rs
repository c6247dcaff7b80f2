//! Runs several experiments, each in its own process, so that none inherits memory from another. An interrupted run
//! resumes: experiments whose results exist are skipped.

use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::time::{Duration, Instant};

use crate::commands::{COMMANDS, Command};
use crate::harness::{Results, commit};
use crate::report::columns;
use crate::{Result, Run, ScaleChoice};

/// Runs the named experiments, or all of the default run; writes their rows to `directory/<name>.json`.
pub(crate) fn run(names: &[String], run: &Run, directory: &Path, name: &str) -> Result<PathBuf> {
    let commands = selected_commands(names)?;
    let work = run.scale_arguments().join("-").replace("--", "") + if run.bonsaidb { "-bonsaidb" } else { "" };
    // The directory name includes the work and the commit, so that results of another build are not reused.
    let parts = directory.join(format!("{name}-{work}-{}", commit().replace(' ', "-")));
    std::fs::create_dir_all(&parts).map_err(|error| format!("cannot create {}: {error}", parts.display()))?;
    let start = Instant::now();
    let mut estimate = TimeEstimate::new(&commands, run.scale);
    for (at, command) in commands.iter().enumerate() {
        let done = parts.join(format!("{}.json", command.name));
        if done.exists() {
            eprintln!("{} was run before", command.name);
        } else {
            eprintln!(
                "[{}/{}] {}: about {} left",
                at + 1,
                commands.len(),
                command.name,
                format_duration(estimate.left())
            );
            let began = Instant::now();
            measure(command, run, &done)?;
            estimate.record(command, began.elapsed());
        }
        estimate.finish(command);
    }
    let mut all: Option<Results> = None;
    for command in &commands {
        let part = Results::read(&parts.join(format!("{}.json", command.name)))?;
        match &mut all {
            Some(all) => all.append(part),
            None => all = Some(part),
        }
    }
    let file = directory.join(format!("{name}.json"));
    let all = all.ok_or("nothing was to be run")?;
    all.write(&file)?;
    columns::write(&all, &file)?;
    std::fs::remove_dir_all(&parts)?;
    eprintln!("{} in {}", file.display(), format_duration(start.elapsed()));
    Ok(file)
}

fn selected_commands(names: &[String]) -> Result<Vec<&'static Command>> {
    if names.is_empty() {
        return Ok(COMMANDS.iter().filter(|command| command.is_in_default_run).collect());
    }
    let all = || COMMANDS.map(|command| command.name).join(", ");
    names
        .iter()
        .map(|name| {
            Command::by_name(name).ok_or_else(|| format!("no experiment is called {name}; there are {}", all()).into())
        })
        .collect()
}

/// Runs one experiment in its own process. Its file gets its final name only when it is complete.
fn measure(command: &Command, run: &Run, done: &Path) -> Result<()> {
    let unfinished = done.with_extension("part");
    let mut process = Process::new(std::env::current_exe()?);
    process.arg(command.name).args(run.scale_arguments()).args(["--quiet", "--json"]).arg(&unfinished);
    if run.bonsaidb {
        process.arg("--bonsaidb");
    }
    if let Some(directory) = &run.directory {
        process.arg("--directory").arg(directory);
    }
    let status = process.status()?;
    if !status.success() {
        return Err(format!("{} ended with {status}; run the same again to go on from there", command.name).into());
    }
    // Regenerated from the combined results at the end.
    columns::remove(&unfinished);
    Ok(std::fs::rename(unfinished, done)?)
}

/// Estimates the remaining time from the expected durations and the observed pace.
struct TimeEstimate {
    is_full: bool,
    left: u64,
    expected: u64,
    taken: f64,
}

impl TimeEstimate {
    fn new(commands: &[&Command], scale: ScaleChoice) -> Self {
        let is_full = matches!(scale, ScaleChoice::Full | ScaleChoice::Huge);
        let mut estimate = TimeEstimate { is_full, left: 0, expected: 0, taken: 0.0 };
        estimate.left = commands.iter().map(|command| estimate.expected_seconds(command)).sum();
        estimate
    }

    fn expected_seconds(&self, command: &Command) -> u64 {
        if self.is_full { command.seconds.1 } else { command.seconds.0 }
    }

    fn record(&mut self, command: &Command, time: Duration) {
        self.expected += self.expected_seconds(command);
        self.taken += time.as_secs_f64();
    }

    fn finish(&mut self, command: &Command) {
        self.left -= self.expected_seconds(command);
    }

    fn left(&self) -> Duration {
        let pace = if self.expected == 0 { 1.0 } else { self.taken / self.expected as f64 };
        Duration::from_secs_f64(self.left as f64 * pace)
    }
}

fn format_duration(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} seconds"),
        seconds => format!("{} minutes", seconds.div_ceil(60)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_time_scales_with_the_observed_pace() {
        let commands: Vec<&Command> = COMMANDS.iter().collect();
        let mut estimate = TimeEstimate::new(&commands, ScaleChoice::Small);
        let all: u64 = COMMANDS.iter().map(|command| command.seconds.0).sum();
        assert_eq!(estimate.left(), Duration::from_secs(all));
        estimate.record(commands[0], Duration::from_secs(2 * commands[0].seconds.0));
        estimate.finish(commands[0]);
        assert_eq!(estimate.left(), Duration::from_secs(2 * (all - commands[0].seconds.0)));
    }

    #[test]
    fn unknown_experiments_are_rejected() {
        let error = selected_commands(&["cashes".to_owned()]).err().unwrap().to_string();
        assert!(error.starts_with("no experiment is called cashes; there are core, live"), "{error}");
    }
}

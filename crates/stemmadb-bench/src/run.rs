//! All experiments in one go, each in a process of its own, so that none finds what another left in memory. A run that was broken off
//! goes on where it was: an experiment whose rows lie beside the results is not run again.

use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::time::{Duration, Instant};

use crate::commands::{COMMANDS, Command};
use crate::harness::{Results, commit};
use crate::report::columns;
use crate::{Result, Run, ScaleChoice};

/// Runs the experiments of these names (all, if there are none); their rows go to `directory/<name>.json`.
pub(crate) fn run(names: &[String], run: &Run, directory: &Path, name: &str) -> Result<PathBuf> {
    let commands = wanted(names)?;
    let scale = run.scale.scale().name;
    // What was measured by another program is not taken over.
    let parts = directory.join(format!("{name}-{scale}-{}", commit().replace(' ', "-")));
    std::fs::create_dir_all(&parts).map_err(|error| format!("cannot create {}: {error}", parts.display()))?;
    let start = Instant::now();
    let mut waiting = Waiting::new(&commands, run.scale);
    for (at, command) in commands.iter().enumerate() {
        let done = parts.join(format!("{}.json", command.name));
        if done.exists() {
            eprintln!("{} was run before", command.name);
        } else {
            eprintln!("[{}/{}] {}: about {} left", at + 1, commands.len(), command.name, spoken(waiting.left()));
            let began = Instant::now();
            measure(command, run, scale, &done)?;
            waiting.took(command, began.elapsed());
        }
        waiting.pass(command);
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
    eprintln!("{} in {}", file.display(), spoken(start.elapsed()));
    Ok(file)
}

fn wanted(names: &[String]) -> Result<Vec<&'static Command>> {
    if names.is_empty() {
        return Ok(COMMANDS.iter().collect());
    }
    let all = || COMMANDS.map(|command| command.name).join(", ");
    names
        .iter()
        .map(|name| {
            Command::of(name).ok_or_else(|| format!("no experiment is called {name}; there are {}", all()).into())
        })
        .collect()
}

/// One experiment in a process of its own. Its rows are in their place only once all of them are there.
fn measure(command: &Command, run: &Run, scale: &str, done: &Path) -> Result<()> {
    let unfinished = done.with_extension("part");
    let mut process = Process::new(std::env::current_exe()?);
    process.args([command.name, "--scale", scale, "--quiet", "--json"]).arg(&unfinished);
    if let Some(directory) = &run.directory {
        process.arg("--directory").arg(directory);
    }
    let status = process.status()?;
    if !status.success() {
        return Err(format!("{} ended with {status}; run the same again to go on from there", command.name).into());
    }
    // What it wrote beside its rows is made again of all of them.
    columns::remove(&unfinished);
    Ok(std::fs::rename(unfinished, done)?)
}

/// How long it may still take: what is known of each experiment, by how fast this machine was so far.
struct Waiting {
    is_full: bool,
    left: u64,
    expected: u64,
    taken: f64,
}

impl Waiting {
    fn new(commands: &[&Command], scale: ScaleChoice) -> Self {
        let is_full = matches!(scale, ScaleChoice::Full);
        let mut waiting = Waiting { is_full, left: 0, expected: 0, taken: 0.0 };
        waiting.left = commands.iter().map(|command| waiting.of(command)).sum();
        waiting
    }

    fn of(&self, command: &Command) -> u64 {
        if self.is_full { command.seconds.1 } else { command.seconds.0 }
    }

    fn took(&mut self, command: &Command, time: Duration) {
        self.expected += self.of(command);
        self.taken += time.as_secs_f64();
    }

    fn pass(&mut self, command: &Command) {
        self.left -= self.of(command);
    }

    fn left(&self) -> Duration {
        let pace = if self.expected == 0 { 1.0 } else { self.taken / self.expected as f64 };
        Duration::from_secs_f64(self.left as f64 * pace)
    }
}

fn spoken(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} seconds"),
        seconds => format!("{} minutes", seconds.div_ceil(60)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_goes_by_the_pace_so_far() {
        let commands: Vec<&Command> = COMMANDS.iter().collect();
        let mut waiting = Waiting::new(&commands, ScaleChoice::Small);
        let all: u64 = COMMANDS.iter().map(|command| command.seconds.0).sum();
        assert_eq!(waiting.left(), Duration::from_secs(all));
        waiting.took(commands[0], Duration::from_secs(2 * commands[0].seconds.0));
        waiting.pass(commands[0]);
        assert_eq!(waiting.left(), Duration::from_secs(2 * (all - commands[0].seconds.0)));
    }

    #[test]
    fn an_unknown_experiment_is_refused_by_name() {
        let error = wanted(&["cashes".to_owned()]).err().unwrap().to_string();
        assert!(error.starts_with("no experiment is called cashes; there are core, live"), "{error}");
    }
}

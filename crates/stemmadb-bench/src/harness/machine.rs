//! Facts about the machine on which a run was made.

use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// The machine, its file system, and the versions of everything that ran.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) core_count: usize,
    pub(crate) memory_mib: u64,
    pub(crate) kernel: String,
    /// File system of the scratch directory.
    pub(crate) file_system: String,
    /// When the run began and when its latest row was written, in UTC (RFC 3339). Empty in older results.
    #[serde(default)]
    pub(crate) began: String,
    #[serde(default)]
    pub(crate) ended: String,
    /// Load average before the run; above zero, the figures are noisy.
    pub(crate) load_before: f64,
    /// Load average when the latest row was written, including the benchmark itself.
    pub(crate) load_after: f64,
    pub(crate) versions: String,
    pub(crate) settings: String,
}

impl Machine {
    /// Detects this machine's facts; databases will be stored in `directory`.
    pub(crate) fn detect(directory: &Path, versions: String, settings: String) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        Machine {
            cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown".to_owned()),
            core_count: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: field(&read("/proc/meminfo"), "MemTotal").and_then(|text| kibibytes(&text)).unwrap_or(0) / 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            file_system: file_system(&read("/proc/self/mounts"), directory),
            began: now(),
            ended: now(),
            load_before: load(),
            load_after: load(),
            versions,
            settings,
        }
    }

    /// Returns each fact with its display name.
    pub(crate) fn facts(&self) -> Vec<(&'static str, String)> {
        let time = (!self.began.is_empty()).then(|| ("time", format!("{} to {}", self.began, self.ended)));
        time.into_iter().chain(self.lasting_facts()).collect()
    }

    /// Records that a row was written now.
    pub(super) fn note_row(&mut self) {
        self.load_after = load();
        self.ended = now();
    }

    /// Extends the time of the run to that of another one.
    pub(super) fn include(&mut self, other: &Machine) {
        self.load_after = self.load_after.max(other.load_after);
        if !other.began.is_empty() {
            self.began =
                if self.began.is_empty() { other.began.clone() } else { other.began.clone().min(self.began.clone()) };
            self.ended = self.ended.clone().max(other.ended.clone());
        }
    }

    fn lasting_facts(&self) -> Vec<(&'static str, String)> {
        vec![
            ("processor", format!("{}, {} cores", self.cpu, self.core_count)),
            ("memory", format!("{} MiB", self.memory_mib)),
            ("system", format!("Linux {}", self.kernel)),
            ("file system", self.file_system.clone()),
            (
                "load",
                format!(
                    "{} before the run, {} at its end (0 and 1 on a quiet machine)",
                    self.load_before, self.load_after
                ),
            ),
            ("versions", self.versions.clone()),
            ("settings", self.settings.clone()),
        ]
    }
}

/// Returns the time in UTC, to the second (RFC 3339).
pub(crate) fn now() -> String {
    jiff::Timestamp::now().strftime("%FT%TZ").to_string()
}

/// Returns the checked-out commit, marked if tracked files differ from it.
pub(crate) fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    match (git(&["rev-parse", "--short=12", "HEAD"]), git(&["status", "--porcelain", "--untracked-files=no"])) {
        (Some(commit), Some(changes)) if changes.is_empty() => commit,
        (Some(commit), _) => format!("{commit} with changes"),
        (None, _) => "unknown".to_owned(),
    }
}

/// Returns the one-minute load average.
fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0)
}

/// Returns the value of a `name: value` line.
pub(crate) fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.split(':').next().is_some_and(|found| found.trim() == name))?;
    line.split_once(':').map(|(_, value)| value.trim().to_owned())
}

/// Parses a text such as `1234 kB`.
pub(crate) fn kibibytes(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

/// Returns the file system type of the mount with the longest path that contains `directory`.
fn file_system(mounts: &str, directory: &Path) -> String {
    let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    let mut best = (0, "unknown");
    for mount in mounts.lines() {
        let mut words = mount.split(' ').skip(1);
        let (Some(path), Some(kind)) = (words.next(), words.next()) else { continue };
        if directory.starts_with(path) && path.len() >= best.0 {
            best = (path.len(), kind);
        }
    }
    best.1.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_system_uses_the_longest_matching_mount() {
        let mounts = "/dev/a / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\nproc /proc proc rw 0 0\n";
        assert_eq!(file_system(mounts, Path::new("/tmp/none/such")), "tmpfs");
        assert_eq!(file_system(mounts, Path::new("/nowhere")), "ext4");
        assert_eq!(file_system("", Path::new("/nowhere")), "unknown");
    }

    #[test]
    fn results_state_when_they_were_measured() {
        let mut first = Machine::detect(Path::new("."), String::new(), String::new());
        assert!(first.began.len() == 20 && first.began.ends_with('Z'), "{}", first.began);
        (first.began, first.ended) = ("2026-01-02T00:00:00Z".to_owned(), "2026-01-02T01:00:00Z".to_owned());
        let mut second = first.clone();
        (second.began, second.ended) = ("2026-01-01T23:00:00Z".to_owned(), "2026-01-02T00:30:00Z".to_owned());
        first.include(&second);
        let time = ("time", "2026-01-01T23:00:00Z to 2026-01-02T01:00:00Z".to_owned());
        assert_eq!(first.facts()[0], time);
        let mut older: Machine = {
            let mut json = serde_json::to_value(&first).unwrap();
            json.as_object_mut().unwrap().retain(|name, _| name != "began" && name != "ended");
            serde_json::from_value(json).unwrap()
        };
        assert_eq!(older.facts()[0].0, "processor");
        older.include(&first);
        assert_eq!(older.facts()[0], time);
    }

    #[test]
    fn proc_fields_are_parsed() {
        let text = "Name:\tbench\nVmHWM:\t    1234 kB\n";
        assert_eq!(field(text, "VmHWM").and_then(|value| kibibytes(&value)), Some(1234));
        assert_eq!(field(text, "RssAnon"), None);
    }
}

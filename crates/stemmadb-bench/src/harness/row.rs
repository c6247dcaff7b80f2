//! Rows of results, exactly in the format that everything which reads them expects.
//!
//! ```json
//! {"experiment": "queries", "row": "status = active, ids", "documents": 5000, "durability": "none",
//!  "unit": "us", "ours": {"p50": 31.0, "p99": 44.2, "spread": 0.08},
//!  "peers": {"sqlite-index": {"p50": 300.1, "p99": 350.0, "spread": 0.05}},
//!  "ratio": {"sqlite-index": 9.7}, "target": {"sqlite-index": 5.0}, "met": true}
//! ```
//!
//! A row whose answers have rows says how many (`rows`), and `ours` and each peer how many came in a second (`rows_per_s`), at the
//! median; a row that needs a word more has a `note`, and one whose like was measured elsewhere says so (`published`).
//!
//! `ratio` is how many times better we are (above 1 is ours); a row has `met` if it has a target, and meets it if every
//! ratio does. Rows about distributions have `histograms` too, by contender. A bound (a number to stay below, the disk's own rate) is a peer like any other.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::histogram::Histogram;
use super::machine::{self, Machine};
use super::published;
use super::summary::{Samples, Summary, Unit};
use super::table;
use crate::Result;

/// What a row says before it has been measured.
#[derive(Clone, Debug)]
pub(crate) struct Heading {
    pub(crate) experiment: &'static str,
    pub(crate) row: String,
    pub(crate) documents: u64,
    pub(crate) durability: &'static str,
    pub(crate) unit: Unit,
    /// How many rows an answer has, where that says something.
    pub(crate) rows: Option<u64>,
    /// What else is to be said about it.
    pub(crate) note: Option<String>,
    /// The ratio to reach against each peer.
    pub(crate) targets: Vec<(&'static str, f64)>,
}

/// One row of results.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) experiment: Cow<'static, str>,
    pub(crate) row: String,
    pub(crate) documents: u64,
    pub(crate) durability: Cow<'static, str>,
    pub(crate) unit: Cow<'static, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rows: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
    /// What was measured elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) published: Option<Cow<'static, str>>,
    pub(crate) ours: Summary,
    pub(crate) peers: BTreeMap<String, Summary>,
    pub(crate) ratio: BTreeMap<String, f64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) target: BTreeMap<String, f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) met: Option<bool>,
    /// How the samples of each contender are spread, where that was wanted.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) histograms: BTreeMap<String, Histogram>,
    #[serde(skip)]
    in_unit: Unit,
}

/// What a run has come to so far. Written to its file after each row, so that a long run that fails has not been for nothing.
#[derive(Serialize, Deserialize)]
pub(crate) struct Results {
    machine: Machine,
    commit: String,
    rows: Vec<Row>,
    #[serde(skip)]
    file: Option<PathBuf>,
}

impl Row {
    /// The row of `heading`, from our samples and each peer's.
    pub(crate) fn new(heading: Heading, ours: &Samples, peers: &[(&str, &Samples)]) -> Self {
        let unit = heading.unit;
        let summary = |samples: &Samples| samples.summary(unit).with_rows(heading.rows, unit);
        let ours = summary(ours);
        let peers: BTreeMap<String, Summary> =
            peers.iter().map(|(name, samples)| ((*name).to_owned(), summary(samples))).collect();
        let ratio: BTreeMap<String, f64> =
            peers.iter().map(|(name, peer)| (name.clone(), unit.ratio(ours.p50, peer.p50))).collect();
        let target: BTreeMap<String, f64> =
            heading.targets.into_iter().map(|(name, target)| (name.to_owned(), target)).collect();
        assert!(target.keys().all(|name| ratio.contains_key(name)), "a target against a peer that did not run");
        let met = (!target.is_empty()).then(|| target.iter().all(|(name, target)| ratio[name] >= *target));
        Row {
            published: published::of(heading.experiment, &heading.row, heading.documents).map(Cow::Borrowed),
            experiment: heading.experiment.into(),
            row: heading.row,
            documents: heading.documents,
            durability: heading.durability.into(),
            unit: unit.name().into(),
            rows: heading.rows,
            note: heading.note,
            ours,
            peers,
            ratio,
            target,
            met,
            histograms: BTreeMap::new(),
            in_unit: unit,
        }
    }

    /// The same row with the quartiles of each contender.
    pub(crate) fn with_quartiles(mut self, ours: &Samples, peers: &[(&str, &Samples)]) -> Self {
        self.ours.quartiles = Some(ours.quartiles(self.in_unit));
        for (name, samples) in peers {
            if let Some(peer) = self.peers.get_mut(*name) {
                peer.quartiles = Some(samples.quartiles(self.in_unit));
            }
        }
        self
    }

    /// The same row with a histogram of each contender, ours called `name`.
    pub(crate) fn with_histograms(mut self, name: &str, ours: &Samples, peers: &[(&str, &Samples)]) -> Self {
        let all = [(name, ours)].into_iter().chain(peers.iter().copied());
        self.histograms = all.map(|(name, samples)| (name.to_owned(), samples.histogram(self.in_unit))).collect();
        self
    }
}

impl Results {
    /// No rows yet; they go to `file` too, if there is one.
    pub(crate) fn new(machine: Machine, commit: String, file: Option<&Path>) -> Self {
        Results { machine, commit, rows: Vec::new(), file: file.map(Path::to_owned) }
    }

    /// The rows that a run wrote to a file.
    pub(crate) fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        serde_json::from_slice(&text).map_err(|error| format!("{} has no results: {error}", file.display()).into())
    }

    /// Those of a group, by what they say that they are of.
    pub(crate) fn of(&self, experiments: &[&str]) -> Self {
        let is_of = |row: &&Row| experiments.contains(&&*row.experiment);
        let rows = self.rows.iter().filter(is_of).cloned().collect();
        Results { machine: self.machine.clone(), commit: self.commit.clone(), rows, file: None }
    }

    /// Takes over what another run came to.
    pub(crate) fn append(&mut self, other: Results) {
        for version in other.machine.versions.split(", ") {
            if !self.machine.versions.split(", ").any(|known| known == version) {
                self.add_version(version);
            }
        }
        // What was measured by another state of the program says so.
        if !self.commit.split(", ").any(|known| known == other.commit) {
            self.commit = format!("{}, {}", self.commit, other.commit);
        }
        self.machine.load_after = self.machine.load_after.max(other.machine.load_after);
        self.rows.extend(other.rows);
    }

    /// Writes everything to a file.
    pub(crate) fn write(&self, file: &Path) -> Result<()> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        std::fs::write(file, text).map_err(|error| format!("cannot write {}: {error}", file.display()).into())
    }

    /// Adds a row and says so.
    pub(crate) fn push(&mut self, row: Row) -> Result<()> {
        eprintln!("{}", table::line(&row));
        self.rows.push(row);
        self.machine.load_after = machine::load();
        let Some(file) = &self.file else { return Ok(()) };
        self.write(file)
    }

    /// The rows so far.
    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Something else ran, whose version belongs beside the figures too.
    pub(crate) fn add_version(&mut self, version: &str) {
        self.machine.versions = format!("{}, {version}", self.machine.versions);
    }

    /// On what, when: the facts of the run as a list in Markdown.
    pub(crate) fn facts(&self) -> String {
        table::facts(&self.machine, &self.commit)
    }

    /// As a page of Markdown that begins with `opening`, in which `{command}` stands for the command.
    pub(crate) fn to_markdown(&self, opening: &str, command: &str) -> String {
        table::page(opening, &self.machine, &self.commit, command, &self.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heading(targets: Vec<(&'static str, f64)>) -> Heading {
        Heading {
            experiment: "queries",
            row: "status = active, ids".to_owned(),
            documents: 5_000,
            durability: "none",
            unit: Unit::Microseconds,
            rows: None,
            note: None,
            targets,
        }
    }

    #[test]
    fn a_row_is_in_the_documented_format() {
        let row = Row::new(
            heading(vec![("sqlite-index", 5.0)]),
            &Samples::of([31_000.0]),
            &[("sqlite-index", &Samples::of([300_100.0]))],
        );
        let expected = r#"{"experiment":"queries","row":"status = active, ids","documents":5000,"durability":"none","unit":"us","ours":{"p50":31.0,"p99":31.0,"spread":0.0},"peers":{"sqlite-index":{"p50":300.1,"p99":300.1,"spread":0.0}},"ratio":{"sqlite-index":9.68},"target":{"sqlite-index":5.0},"met":true}"#;
        assert_eq!(serde_json::to_string(&row).unwrap(), expected);
    }

    #[test]
    fn a_row_with_rows_says_how_many_come_in_a_second() {
        let heading = Heading { rows: Some(1_667), ..heading(vec![]) };
        let row = Row::new(heading, &Samples::of([10_000.0]), &[]);
        assert_eq!((row.rows, row.ours.rows_per_s), (Some(1_667), Some(166_700_000.0)));
    }

    #[test]
    fn met_is_absent_without_a_target_and_needs_every_target() {
        let (ours, near, far) = (Samples::of([10.0]), Samples::of([20.0]), Samples::of([200.0]));
        let peers = [("near", &near), ("far", &far)];
        let json = serde_json::to_string(&Row::new(heading(vec![]), &ours, &peers)).unwrap();
        assert!(!json.contains("met") && !json.contains("target"), "{json}");
        assert_eq!(Row::new(heading(vec![("near", 5.0), ("far", 5.0)]), &ours, &peers).met, Some(false));
        assert_eq!(Row::new(heading(vec![("near", 2.0), ("far", 5.0)]), &ours, &peers).met, Some(true));
    }

    #[test]
    #[should_panic(expected = "a target against a peer that did not run")]
    fn a_target_needs_its_peer() {
        Row::new(heading(vec![("absent", 2.0)]), &Samples::of([1.0]), &[]);
    }
}

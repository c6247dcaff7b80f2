//! Result rows and their JSON format.
//!
//! ```json
//! {"experiment": "queries", "row": "status = active, ids", "documents": 5000, "durability": "none",
//!  "unit": "us", "ours": {"p50": 31.0, "p99": 44.2, "spread": 0.08},
//!  "peers": {"sqlite-index": {"p50": 300.1, "p99": 350.0, "spread": 0.05}},
//!  "ratio": {"sqlite-index": 9.7}, "target": {"sqlite-index": 5.0}, "met": true}
//! ```
//!
//! A row about answers has their row count (`rows`), and `ours` and each peer have the rows per second at the median
//! (`rows_per_s`). Rows about distributions also have their `mean`, `minimum` and `quartiles`. A row may have a remark
//! (`note`) and a figure published elsewhere (`published`).
//!
//! `ratio` is how many times better Stemma is (above 1 favors Stemma). A row with targets has `met`, which is true
//! if every ratio reaches its target. Rows about distributions have `histograms` by contender. A bound (a fixed limit,
//! or the disk's own rate) is stored as a peer.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::histogram::Histogram;
use super::machine::Machine;
use super::published;
use super::summary::{Samples, Summary, Unit};
use super::table;
use crate::Result;

/// Description of a row before it is measured.
#[derive(Clone, Debug)]
pub(crate) struct Heading {
    pub(crate) experiment: &'static str,
    pub(crate) row: String,
    pub(crate) documents: u64,
    pub(crate) durability: &'static str,
    pub(crate) unit: Unit,
    /// Row count of an answer, where meaningful.
    pub(crate) rows: Option<u64>,
    /// An additional remark.
    pub(crate) note: Option<String>,
    /// Target ratios by peer.
    pub(crate) targets: Vec<(&'static str, f64)>,
}

/// One measured row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ResultRow {
    pub(crate) experiment: Cow<'static, str>,
    pub(crate) row: String,
    pub(crate) documents: u64,
    pub(crate) durability: Cow<'static, str>,
    pub(crate) unit: Cow<'static, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rows: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
    /// A figure published elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) published: Option<Cow<'static, str>>,
    pub(crate) ours: Summary,
    pub(crate) peers: BTreeMap<String, Summary>,
    pub(crate) ratio: BTreeMap<String, f64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) target: BTreeMap<String, f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) met: Option<bool>,
    /// Sample distributions by contender, if recorded.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) histograms: BTreeMap<String, Histogram>,
    #[serde(skip)]
    in_unit: Unit,
}

/// The rows measured so far. Written to its file after each row, so that a failing run keeps its results.
#[derive(Serialize, Deserialize)]
pub(crate) struct Results {
    machine: Machine,
    commit: String,
    rows: Vec<ResultRow>,
    #[serde(skip)]
    file: Option<PathBuf>,
}

impl ResultRow {
    /// Builds a row from the samples of Stemma and of each peer.
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
        ResultRow {
            published: published::figure_for(heading.experiment, &heading.row, heading.documents).map(Cow::Borrowed),
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

    /// Adds each contender's mean, minimum and quartiles.
    pub(crate) fn with_distributions(mut self, ours: &Samples, peers: &[(&str, &Samples)]) -> Self {
        self.ours = self.ours.with_distribution(ours, self.in_unit);
        for (name, samples) in peers {
            if let Some(peer) = self.peers.get_mut(*name) {
                *peer = peer.with_distribution(samples, self.in_unit);
            }
        }
        self
    }

    /// Adds each contender's histogram; Stemma's is stored under `name`.
    pub(crate) fn with_histograms(mut self, name: &str, ours: &Samples, peers: &[(&str, &Samples)]) -> Self {
        let all = [(name, ours)].into_iter().chain(peers.iter().copied());
        self.histograms = all.map(|(name, samples)| (name.to_owned(), samples.histogram(self.in_unit))).collect();
        self
    }
}

/// Parts of display names in results files written before they were renamed, with their replacements.
const LEGACY_NAMES: [(&str, &str); 11] = [
    (": an answer", ": latency"),
    (": an insert", ": latency"),
    ("literal: what is not there", "literal: missing documents"),
    (
        "network notice: a new cart, from its request until another client hears of it",
        "network notification: new cart, from request to another client's notification",
    ),
    ("longpoll: from a write to the notice", "longpoll: from write to notification"),
    ("subscription: a write and its notice", "subscription: write and notification"),
    (" to notice, ", " to notification, "),
    (", a thread that waits", ", waiting thread"),
    (", the same thread", ", same thread"),
    (": fields it does not have", ": absent fields"),
    ("field sum kept by a view", "field sum by a view"),
];

impl ResultRow {
    /// Replaces names that older versions of this program wrote, and figures that are not measured here.
    fn update(&mut self) {
        if self.experiment == "what not to do" {
            self.experiment = "anti-patterns".into();
        }
        for (old, new) in LEGACY_NAMES {
            self.row = self.row.replace(old, new);
        }
        self.published = published::figure_for(&self.experiment, &self.row, self.documents).map(Cow::Borrowed);
    }
}

impl Results {
    /// Creates empty results, which are also written to `file` if given.
    pub(crate) fn new(machine: Machine, commit: String, file: Option<&Path>) -> Self {
        Results { machine, commit, rows: Vec::new(), file: file.map(Path::to_owned) }
    }

    /// Reads results that a run wrote.
    pub(crate) fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        let mut results: Results = serde_json::from_slice(&text)
            .map_err(|error| format!("cannot parse {} as results: {error}", file.display()))?;
        results.rows.iter_mut().for_each(ResultRow::update);
        Ok(results)
    }

    /// Returns the rows of the given experiments.
    pub(crate) fn for_experiments(&self, experiments: &[&str]) -> Self {
        let is_included = |row: &&ResultRow| experiments.contains(&&*row.experiment);
        let rows = self.rows.iter().filter(is_included).cloned().collect();
        Results { machine: self.machine.clone(), commit: self.commit.clone(), rows, file: None }
    }

    /// Appends the results of another run.
    pub(crate) fn append(&mut self, other: Results) {
        for version in other.machine.versions.split(", ") {
            if !self.machine.versions.split(", ").any(|known| known == version) {
                self.add_version(version);
            }
        }
        // Results measured at another commit list both commits.
        if !self.commit.split(", ").any(|known| known == other.commit) {
            self.commit = format!("{}, {}", self.commit, other.commit);
        }
        self.machine.include(&other.machine);
        self.rows.extend(other.rows);
    }

    /// Writes all rows to a file.
    pub(crate) fn write(&self, file: &Path) -> Result<()> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        std::fs::write(file, text).map_err(|error| format!("cannot write {}: {error}", file.display()).into())
    }

    /// Adds a row, prints it, and writes the file.
    pub(crate) fn push(&mut self, row: ResultRow) -> Result<()> {
        eprintln!("{}", table::line(&row));
        self.rows.push(row);
        self.machine.note_row();
        let Some(file) = &self.file else { return Ok(()) };
        self.write(file)
    }

    /// Returns the rows measured so far.
    pub(crate) fn rows(&self) -> &[ResultRow] {
        &self.rows
    }

    /// Returns the number of cores of the machine that measured them.
    pub(crate) fn core_count(&self) -> usize {
        self.machine.core_count
    }

    /// Adds the version of another measured program.
    pub(crate) fn add_version(&mut self, version: &str) {
        self.machine.versions = format!("{}, {version}", self.machine.versions);
    }

    /// Counts rows, targets, and rows in which a peer is better.
    pub(crate) fn outcome(&self) -> String {
        table::outcome(&self.rows)
    }

    /// Returns the facts of the run as a Markdown list.
    pub(crate) fn facts(&self) -> String {
        table::facts(&self.machine, &self.commit)
    }

    /// Returns the full tables as a Markdown page that starts with `opening`, in which `{command}` is replaced.
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
    fn rows_serialize_in_the_documented_format() {
        let row = ResultRow::new(
            heading(vec![("sqlite-index", 5.0)]),
            &Samples::from_costs([31_000.0]),
            &[("sqlite-index", &Samples::from_costs([300_100.0]))],
        );
        let expected = concat!(
            r#"{"experiment":"queries","row":"status = active, ids","documents":5000,"durability":"none","#,
            r#""unit":"us","ours":{"p50":31.0,"p99":31.0,"spread":0.0},"#,
            r#""peers":{"sqlite-index":{"p50":300.1,"p99":300.1,"spread":0.0}},"#,
            r#""ratio":{"sqlite-index":9.68},"target":{"sqlite-index":5.0},"met":true}"#
        );
        assert_eq!(serde_json::to_string(&row).unwrap(), expected);
    }

    #[test]
    fn row_counts_give_rows_per_second() {
        let heading = Heading { rows: Some(1_667), ..heading(vec![]) };
        let row = ResultRow::new(heading, &Samples::from_costs([10_000.0]), &[]);
        assert_eq!((row.rows, row.ours.rows_per_s), (Some(1_667), Some(166_700_000.0)));
    }

    #[test]
    fn met_is_absent_without_targets_and_requires_all_of_them() {
        let (ours, near, far) =
            (Samples::from_costs([10.0]), Samples::from_costs([20.0]), Samples::from_costs([200.0]));
        let peers = [("near", &near), ("far", &far)];
        let json = serde_json::to_string(&ResultRow::new(heading(vec![]), &ours, &peers)).unwrap();
        assert!(!json.contains("met") && !json.contains("target"), "{json}");
        assert_eq!(ResultRow::new(heading(vec![("near", 5.0), ("far", 5.0)]), &ours, &peers).met, Some(false));
        assert_eq!(ResultRow::new(heading(vec![("near", 2.0), ("far", 5.0)]), &ours, &peers).met, Some(true));
    }

    #[test]
    fn legacy_names_are_replaced() {
        let mut row = ResultRow::new(heading(vec![]), &Samples::from_costs([1.0]), &[]);
        row.experiment = "what not to do".into();
        row.row = "GET, 16 connections: an answer".to_owned();
        row.update();
        assert_eq!((&*row.experiment, &*row.row), ("anti-patterns", "GET, 16 connections: latency"));
    }

    #[test]
    #[should_panic(expected = "a target against a peer that did not run")]
    fn targets_require_their_peer() {
        ResultRow::new(heading(vec![("absent", 2.0)]), &Samples::from_costs([1.0]), &[]);
    }
}
